//! A queue of plain things that lie in one block, each where its address can be told before it is looked at.

use metaroce_wire::prefetch;

/// Slots of the first block.
const FEWEST: usize = 4;

/// A queue. Its block has as many slots as a power of two, or none.
#[derive(Debug)]
pub struct Ring<T> {
    slots: Box<[T]>,
    head: u32,
    len: u32,
}

impl<T> Default for Ring<T> {
    fn default() -> Ring<T> {
        Ring { slots: Box::default(), head: 0, len: 0 }
    }
}

impl<T: Copy> Ring<T> {
    /// How many there are.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    const fn slot(&self, index: usize) -> usize {
        (self.head as usize).wrapping_add(index) & self.slots.len().wrapping_sub(1)
    }

    /// The one behind `index` others.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        if index < self.len() { self.slots.get(self.slot(index)) } else { None }
    }

    /// The same to change.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        let slot = self.slot(index);
        if index < self.len() { self.slots.get_mut(slot) } else { None }
    }

    /// The oldest.
    #[inline]
    pub fn front(&self) -> Option<&T> {
        self.get(0)
    }

    /// All, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    #[inline]
    pub fn push_back(&mut self, item: T) {
        if self.len() == self.slots.len() {
            self.grow(item);
        }
        let slot = self.slot(self.len());
        self.slots[slot] = item;
        self.len += 1;
    }

    #[inline]
    pub fn pop_front(&mut self) -> Option<T> {
        let front = *self.front()?;
        (self.head, self.len) = (self.slot(1) as u32, self.len - 1);
        Some(front)
    }

    pub fn clear(&mut self) {
        *self = Ring::default();
    }

    /// Hints the processor at slot `index`, of one that is there or will be.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        self.slots.get(self.slot(index)).map(prefetch).unwrap_or_default();
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, filler: T) {
        let mut slots = std::mem::take(&mut self.slots).into_vec();
        slots.rotate_left(self.head as usize);
        slots.resize((2 * slots.len()).max(FEWEST), filler);
        (self.slots, self.head) = (slots.into(), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_queue(steps in prop::collection::vec(0..5u8, 1..300)) {
            let (mut ring, mut queue) = (Ring::default(), VecDeque::new());
            for (item, step) in steps.into_iter().enumerate() {
                match step {
                    0..3 => (ring.push_back(item), queue.push_back(item)).0,
                    3 => prop_assert_eq!(ring.pop_front(), queue.pop_front()),
                    _ => ring.get_mut(1).into_iter().chain(queue.get_mut(1)).for_each(|one| *one += 1000),
                }
                prop_assert!(ring.iter().eq(&queue) && ring.is_empty() == queue.is_empty());
                prop_assert_eq!((ring.front(), ring.len(), ring.get(queue.len())), (queue.front(), queue.len(), None));
            }
        }
    }
}
