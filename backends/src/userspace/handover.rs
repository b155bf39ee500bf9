//! Open files that outlive the process. A store (systemd's file descriptor store) passes the queues
//! and sockets of a device to the next process. The device and the packets that wait in them
//! survive a restart of flanneld.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

/// The files have names.
pub trait Store: fmt::Debug + Send + Sync {
    /// The files that a previous process stored. Later calls for the same name give none.
    fn take(&self, name: &str) -> Vec<OwnedFd>;

    /// Adds to the files stored under this name.
    fn keep(&self, name: &str, file: BorrowedFd<'_>);

    fn forget(&self, name: &str);
}

/// What a store contains under a name. If flanneld stored the same files again, the store would
/// briefly not contain them.
pub(super) struct StoredFiles<T> {
    /// Nothing is stored without it.
    store: Option<Arc<dyn Store>>,
    name: String,
    /// How many files the previous process stored.
    inherited: usize,
    /// `None` if the store may contain other files than this process has.
    kept: Option<Vec<Weak<T>>>,
}

impl<T: AsFd> StoredFiles<T> {
    /// Also gives the files that a previous process stored.
    pub(super) fn take(store: Option<&Arc<dyn Store>>, name: String) -> (Self, Vec<OwnedFd>) {
        let files = store.map(|store| store.take(&name)).unwrap_or_default();
        (Self { store: store.cloned(), name, inherited: files.len(), kept: None }, files)
    }

    /// Records that the store holds these files, if they are all files of the previous process.
    pub(super) fn adopt(&mut self, used: &[Arc<T>]) {
        self.kept =
            (self.inherited == used.len()).then(|| used.iter().map(Arc::downgrade).collect());
    }

    /// Replaces the files under the name. Does nothing if the store already holds exactly these.
    pub(super) fn update(&mut self, now: &[Arc<T>]) {
        let Some(store) = &self.store else { return };
        let is = |kept: &Weak<T>, now: &Arc<T>| std::ptr::eq(kept.as_ptr(), Arc::as_ptr(now));
        if self.kept.as_ref().is_some_and(|kept| {
            kept.len() == now.len() && kept.iter().zip(now).all(|(kept, now)| is(kept, now))
        }) {
            return;
        }
        store.forget(&self.name);
        now.iter().for_each(|file| store.keep(&self.name, file.as_fd()));
        self.kept = Some(now.iter().map(Arc::downgrade).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::slice::from_ref;
    use std::sync::Mutex;

    /// Records each call.
    #[derive(Debug, Default)]
    struct Book {
        calls: Mutex<Vec<String>>,
        /// How many files a previous process stored.
        left: usize,
    }

    impl Book {
        fn read(&self) -> Vec<String> {
            std::mem::take(&mut self.calls.lock().unwrap())
        }
    }

    impl Store for Book {
        fn take(&self, _: &str) -> Vec<OwnedFd> {
            (0..self.left).map(|_| File::open("/dev/null").unwrap().into()).collect()
        }

        fn keep(&self, name: &str, _: BorrowedFd<'_>) {
            self.calls.lock().unwrap().push(format!("keep {name}"));
        }

        fn forget(&self, name: &str) {
            self.calls.lock().unwrap().push(format!("forget {name}"));
        }
    }

    /// The previous process left so many files, of which this one uses these.
    fn stored(left: usize, used: &[Arc<File>]) -> (Arc<Book>, StoredFiles<File>) {
        let book = Arc::new(Book { left, ..Book::default() });
        let store: Arc<dyn Store> = book.clone();
        let (mut kept, files) = StoredFiles::take(Some(&store), "a".to_owned());
        assert_eq!(files.len(), left);
        kept.adopt(used);
        (book, kept)
    }

    #[test]
    fn only_changes_are_stored() {
        let file = || Arc::new(File::open("/dev/null").unwrap());
        let (one, two) = (file(), file());
        // All stored files are in use, and systemd still has them.
        let (book, mut kept) = stored(1, from_ref(&one));
        kept.update(from_ref(&one));
        assert_eq!(book.read(), Vec::<String>::new());
        kept.update(from_ref(&two));
        assert_eq!(book.read(), ["forget a", "keep a"]);
        kept.update(&[two.clone(), one.clone()]);
        assert_eq!(book.read(), ["forget a", "keep a", "keep a"]);
        kept.update(&[]);
        assert_eq!(book.read(), ["forget a"]);
        kept.update(&[]);
        assert_eq!(book.read(), Vec::<String>::new());
        // Stored files that cannot be used must be removed.
        for (left, used) in [(1, vec![]), (2, vec![one.clone()])] {
            let (book, mut kept) = stored(left, &used);
            kept.update(&used);
            assert_eq!(book.read().first().map(String::as_str), Some("forget a"));
        }
        // Nothing was stored, and there are no files.
        let (book, mut kept) = stored(0, &[]);
        kept.update(&[]);
        assert_eq!(book.read(), Vec::<String>::new());
    }
}
