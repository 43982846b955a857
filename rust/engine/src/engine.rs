//! Which entry starts when: counts the unmet dependencies of each.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::program::Program;

/// A run of a program. Iterations repeat it, each after all ranks have finished the one before.
#[derive(Debug)]
pub struct Engine {
    program: Arc<Program>,
    waits: Vec<u32>,
    startable: VecDeque<u32>,
    unfinished: usize,
}

impl Engine {
    /// An engine that has not started.
    pub fn new(program: Arc<Program>) -> Engine {
        Engine { waits: Vec::new(), startable: VecDeque::new(), unfinished: 0, program }
    }

    /// The program.
    pub const fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Starts an iteration: entries without dependencies become startable, in program order.
    pub fn begin(&mut self) {
        self.waits.clone_from(&self.program.waits);
        self.unfinished = self.waits.len();
        self.startable.clear();
        self.startable.extend((0..self.waits.len() as u32).filter(|&i| self.waits[i as usize] == 0));
    }

    /// The next entry that may start.
    pub fn start_next(&mut self) -> Option<u32> {
        self.startable.pop_front()
    }

    /// Entry `wqe` is complete.
    pub fn complete(&mut self, wqe: u32) {
        self.unfinished -= 1;
        let range = self.program.dependents_start[wqe as usize] as usize
            ..self.program.dependents_start[wqe as usize + 1] as usize;
        for &dependent in &self.program.dependents[range] {
            let waits = &mut self.waits[dependent as usize];
            *waits -= 1;
            if *waits == 0 {
                self.startable.push_back(dependent);
            }
        }
    }

    /// Entries not complete yet.
    pub const fn unfinished(&self) -> usize {
        self.unfinished
    }
}
