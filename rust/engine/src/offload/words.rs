//! Words of device memory, and who waits for them.

const NONE: u32 = u32::MAX;

/// The words of a rank. Those that wait for one are a list: the last that came first.
#[derive(Debug)]
pub(super) struct Words {
    values: Vec<u64>,
    last: Vec<u32>,
    /// Of each subgraph: which came before it to the same word.
    before: Vec<u32>,
}

impl Words {
    pub(super) fn new(words: usize, subgraphs: usize) -> Words {
        Words { values: vec![0; words], last: vec![NONE; words], before: vec![NONE; subgraphs] }
    }

    pub(super) fn reset(&mut self) {
        self.values.fill(0);
        self.last.fill(NONE);
    }

    pub(super) fn get(&self, word: u64) -> u64 {
        self.values[word as usize]
    }

    /// Whether the word compares to `value` as `comparison` says: 0 >=, 1 ==, 2 >.
    pub(super) fn holds(&self, word: u64, comparison: u32, value: u64) -> bool {
        let stands = self.get(word);
        match comparison {
            0 => stands >= value,
            1 => stands == value,
            _ => stands > value,
        }
    }

    /// `subgraph` waits until the word is set.
    pub(super) fn enlist(&mut self, word: u64, subgraph: u32) {
        self.before[subgraph as usize] = std::mem::replace(&mut self.last[word as usize], subgraph);
    }

    /// Sets a word; those that waited for it, in the order in which they came, go to `woken`.
    pub(super) fn set(&mut self, word: u64, value: u64, woken: &mut Vec<u32>) {
        self.values[word as usize] = value;
        let mut next = std::mem::replace(&mut self.last[word as usize], NONE);
        while next != NONE {
            woken.push(next);
            next = self.before[next as usize];
        }
        woken.reverse();
    }
}
