//! Names of a container and of its interface. Both are validated, because file names are built from them.

use crate::error::{CniError, INVALID_ENVIRONMENT};

/// The longest interface name in Linux, in bytes.
const NAME_LENGTH: usize = 15;

/// One interface of one container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_IFNAME`.
    pub interface: String,
}

/// Whether ADD accepts both names.
pub fn is_valid(attachment: &Attachment) -> bool {
    valid_container(&attachment.container).is_ok()
        && !attachment.interface.is_empty()
        && valid_interface(&attachment.interface).is_ok()
}

/// True if it begins with a letter or digit, and contains only letters, digits, `_`, `.` and `-`.
pub(crate) fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

pub(crate) fn valid_container(id: &str) -> Result<(), CniError> {
    if is_word(id) {
        return Ok(());
    }
    let why =
        format!("{id:?}: a letter or digit, then letters, digits, '_', '.' and '-' are allowed");
    Err(CniError::new(INVALID_ENVIRONMENT, "invalid characters in containerID").details(why))
}

pub(crate) fn valid_interface(name: &str) -> Result<(), CniError> {
    let invalid = |why: &str| {
        Err(CniError::new(INVALID_ENVIRONMENT, why).details(format!("CNI_IFNAME is {name:?}")))
    };
    if name.len() > NAME_LENGTH {
        return invalid("interface name is too long: at most 15 bytes");
    }
    if name == "." || name == ".." {
        return invalid("interface name is . or ..");
    }
    if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control()) {
        return invalid("interface name contains / or : or blanks");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_are_no_paths() {
        let long = "a".repeat(4096);
        for id in ["c0ffee", "k8s_pod-1.x", "0", &long] {
            assert!(valid_container(id).is_ok(), "{id}");
        }
        for id in ["", "..", ".hidden", "-x", "a/b", "../../etc/x", "a\0b", "a b", "ä", "a:eth0"] {
            assert_eq!(valid_container(id).map_err(|error| error.code), Err(4), "{id:?}");
        }
        for name in ["eth0", "a", "veth-x.100", "123456789012345"] {
            assert!(valid_interface(name).is_ok(), "{name}");
        }
        for name in [".", "..", "a/b", "a:b", "a b", "a\tb", "a\0b", "1234567890123456", &long] {
            assert_eq!(valid_interface(name).map_err(|error| error.code), Err(4), "{name:?}");
        }
    }
}
