//! Which entry starts when: counts the unmet dependencies of each.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::column::Column;
use crate::program::Program;

/// A run of a program. Iterations repeat it, each after all ranks have finished the one before.
#[derive(Debug)]
pub struct Engine {
    program: Arc<Program>,
    waits: Column,
    /// Entries from here on that wait for nothing have not started, and do so before those of `startable`.
    begun: usize,
    startable: VecDeque<u32>,
    unfinished: usize,
}

impl Engine {
    /// An engine that has not started: there is nothing to start before [`Engine::begin`].
    pub fn new(program: Arc<Program>) -> Engine {
        Engine { waits: Column::default(), begun: program.len(), startable: VecDeque::new(), unfinished: 0, program }
    }

    /// The program.
    pub const fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Starts an iteration: entries without dependencies become startable, in program order.
    pub fn begin(&mut self) {
        self.waits = self.program.waits.spread();
        self.unfinished = self.program.len();
        self.begun = 0;
        self.startable.clear();
    }

    /// The next entry that may start.
    pub fn start_next(&mut self) -> Option<u32> {
        while self.begun < self.program.len() {
            self.begun += 1;
            if self.program.waits.get(self.begun - 1) == 0 {
                return Some(self.begun as u32 - 1);
            }
        }
        self.startable.pop_front()
    }

    /// Entry `wqe` is complete.
    pub fn complete(&mut self, wqe: u32) {
        self.unfinished -= 1;
        for dependent in self.program.dependents(wqe) {
            if self.waits.decrement(dependent as usize) == 0 {
                self.startable.push_back(dependent);
            }
        }
    }

    /// Entries not complete yet.
    pub const fn unfinished(&self) -> usize {
        self.unfinished
    }
}
