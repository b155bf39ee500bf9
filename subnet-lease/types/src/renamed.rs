//! Former names of flanneld's flags. Former names work for one release and cause a warning.

/// A flag that had another name in the previous release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenamedFlag {
    /// The former name, without dashes.
    pub former: &'static str,
    /// The current name, without dashes.
    pub present: &'static str,
    /// The environment variable of the former name.
    pub former_variable: &'static str,
    /// The environment variable of the current name.
    pub present_variable: &'static str,
}

/// All renamed flags.
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

/// Returns the current name for a former name of a flag.
pub fn present(former: &str) -> Option<&'static str> {
    FLAGS
        .iter()
        .find(|flag| flag.former == former)
        .map(|flag| flag.present)
}
