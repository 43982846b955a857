//! The next events at hosts, so that what they will touch can be asked for. No effect on results.

const PLACES: usize = 32;

/// Names of events in the order in which they are due; those that find no place are left out.
#[derive(Debug, Default)]
pub(crate) struct Upcoming {
    names: [u64; PLACES],
    first: usize,
    end: usize,
}

impl Upcoming {
    #[inline]
    pub fn push(&mut self, name: u64) {
        if self.end - self.first < PLACES {
            self.names[self.end % PLACES] = name;
            self.end += 1;
        }
    }

    /// Takes `name` out if it is the first. Answers whether it was.
    #[inline]
    pub fn pop(&mut self, name: u64) -> bool {
        let is_first = self.first < self.end && self.names[self.first % PLACES] == name;
        self.first += usize::from(is_first);
        is_first
    }

    /// The one that `ahead` others come before.
    #[inline]
    pub fn get(&self, ahead: usize) -> Option<u64> {
        (self.first + ahead < self.end).then(|| self.names[(self.first + ahead) % PLACES])
    }
}
