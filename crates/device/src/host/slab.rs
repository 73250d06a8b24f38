//! Numbered places for values: the `user_data` of what is in flight.

/// A growing table whose free places are used again.
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> usize {
        if let Some(index) = self.free.pop() {
            self.places[index] = Some(value);
            return index;
        }
        self.places.push(Some(value));
        self.places.len() - 1
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.places.get_mut(index)?.as_mut()
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<T> {
        let value = self.places.get_mut(index)?.take()?;
        self.free.push(index);
        Some(value)
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
