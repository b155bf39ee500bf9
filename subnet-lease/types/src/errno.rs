//! Error numbers of the operating system.

use std::fmt;
use std::io;

/// As in errno(3), but it can be compared and stored. It prints as the text of an [`io::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub i32);

/// Replaces a missing number.
const EIO: i32 = 5;

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self::from(&error)
    }
}

impl From<&io::Error> for Errno {
    fn from(error: &io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(EIO))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_reads_as_the_error_that_it_was_taken_from() {
        let error = io::Error::from_raw_os_error(98);
        assert_eq!(
            (Errno::from(&error).0, Errno::from(&error).to_string()),
            (98, error.to_string())
        );
        assert_eq!(Errno::from(io::Error::other("no number")), Errno(EIO));
    }
}
