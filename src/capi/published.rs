//! A value that threads replace, and that a forked child can always read.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::values::sync::lock;

type Place<T> = RwLock<Option<Arc<T>>>;

/// A value in one of two places. A new one is written into the other place, so no thread ever writes where the current
/// one is: at a fork its place is locked by no thread that the child does not have.
pub(super) struct Published<T> {
    is_second: AtomicBool,
    places: (Place<T>, Place<T>),
    /// Held by the thread that replaces the value.
    changing: Mutex<()>,
}

impl<T> Published<T> {
    pub(super) fn new(value: T) -> Published<T> {
        Published {
            is_second: AtomicBool::new(false),
            places: (RwLock::new(Some(Arc::new(value))), RwLock::new(None)),
            changing: Mutex::new(()),
        }
    }

    pub(super) fn get(&self) -> Arc<T> {
        loop {
            let is_second = self.is_second.load(SeqCst);
            let place = self.place(is_second).read();
            let value = place.unwrap_or_else(PoisonError::into_inner).clone();
            // Otherwise another thread has replaced it meanwhile, and this one may be what the next change has written there,
            // which is not current yet.
            if let Some(value) = value.filter(|_| self.is_second.load(SeqCst) == is_second) {
                return value;
            }
        }
    }

    /// Replaces the value by the one that is made from it, if it is made. Returns the old one.
    pub(super) fn change<E>(
        &self,
        new: impl FnOnce(&T) -> Result<T, E>,
    ) -> Result<Option<Arc<T>>, E> {
        let _changing = lock(&self.changing);
        let new = Arc::new(new(&self.get())?);
        let old = self.is_second.load(SeqCst);
        self.put(!old, Some(new));
        self.is_second.store(!old, SeqCst);
        Ok(self.put(old, None))
    }

    fn put(&self, is_second: bool, value: Option<Arc<T>>) -> Option<Arc<T>> {
        let place = self.place(is_second).write();
        std::mem::replace(&mut *place.unwrap_or_else(PoisonError::into_inner), value)
    }

    fn place(&self, is_second: bool) -> &Place<T> {
        let (first, second) = &self.places;
        if is_second { second } else { first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_get_a_value_that_is_current_and_no_change_is_forgotten() {
        let published = Published::new(0_u32);
        let add = |value: &u32| Ok::<_, ()>(value + 1);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..10_000).for_each(|_| drop(published.change(add))));
                scope.spawn(|| {
                    let mut last = 0;
                    while last < 20_000 {
                        let value = *published.get();
                        assert!(last <= value, "{last}, {value}");
                        last = value;
                    }
                });
            }
        });
        assert_eq!(published.change(|_| Err(())), Err(()));
        assert_eq!(*published.get(), 20_000);
        assert_eq!(published.change(add), Ok(Some(Arc::new(20_000))));
        assert_eq!(*published.get(), 20_001);
    }
}
