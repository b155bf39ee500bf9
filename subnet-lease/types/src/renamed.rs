//! Former names of flanneld's flags. They work for one release and cause a warning.

/// A flag with another name than in the release before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenamedFlag {
    /// The former name, without dashes.
    pub former: &'static str,
    /// The present name, without dashes.
    pub present: &'static str,
    /// The environment variable of the former name.
    pub former_variable: &'static str,
    /// The environment variable of the present name.
    pub present_variable: &'static str,
}

/// All flags that have another name now.
pub const FLAGS: &[RenamedFlag] = &[
    RenamedFlag {
        former: "page-ip",
        present: "status-ip",
        former_variable: "FLANNELD_PAGE_IP",
        present_variable: "FLANNELD_STATUS_IP",
    },
    RenamedFlag {
        former: "page-port",
        present: "status-port",
        former_variable: "FLANNELD_PAGE_PORT",
        present_variable: "FLANNELD_STATUS_PORT",
    },
];

/// Returns the present name of a flag that had this name before.
pub fn present(former: &str) -> Option<&'static str> {
    FLAGS
        .iter()
        .find(|flag| flag.former == former)
        .map(|flag| flag.present)
}
