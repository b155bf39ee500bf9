use super::*;
use crate::handover::Store;
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::slice::from_ref;
use std::sync::Mutex;

/// Records each call.
#[derive(Default)]
struct Book(Mutex<Vec<String>>);

impl Book {
    fn read(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Store for Book {
    fn take(&self, _: &str) -> Vec<OwnedFd> {
        Vec::new()
    }

    fn keep(&self, name: &str, _: BorrowedFd<'_>) {
        self.0.lock().unwrap().push(format!("keep {name}"));
    }

    fn forget(&self, name: &str) {
        self.0.lock().unwrap().push(format!("forget {name}"));
    }
}

#[test]
fn only_changes_are_stored() {
    let book = Arc::new(Book::default());
    let files = Files::new(book.clone());
    let file = || Arc::new(File::open("/dev/null").unwrap());
    let (one, two) = (file(), file());
    // All stored files are in use, and systemd still has them.
    let mut kept = StoredFiles(None);
    kept.inherited(1, from_ref(&one));
    kept.update(&files, "a", from_ref(&one));
    assert_eq!(book.read(), Vec::<String>::new());
    kept.update(&files, "a", from_ref(&two));
    assert_eq!(book.read(), ["forget a", "keep a"]);
    kept.update(&files, "a", &[two.clone(), one.clone()]);
    assert_eq!(book.read(), ["forget a", "keep a", "keep a"]);
    kept.update(&files, "a", &[]);
    assert_eq!(book.read(), ["forget a"]);
    kept.update(&files, "a", &[]);
    assert_eq!(book.read(), Vec::<String>::new());
    // Stored files that cannot be used must be removed.
    for (left, used) in [(1, vec![]), (2, vec![one.clone()])] {
        let mut kept = StoredFiles(None);
        kept.inherited(left, &used);
        kept.update(&files, "a", &used);
        assert_eq!(book.read().first().map(String::as_str), Some("forget a"));
    }
    // Nothing was stored, and there are no files.
    let mut kept = StoredFiles::<File>(None);
    kept.inherited(0, &[]);
    kept.update(&files, "a", &[]);
    assert_eq!(book.read(), Vec::<String>::new());
}
