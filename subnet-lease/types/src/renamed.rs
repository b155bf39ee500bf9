//! Former names of flanneld's flags and their variables, each with the current name. Former names work for one release and cause a warning.

/// All renamed flags, without dashes.
pub const FLAGS: &[(&str, &str)] = &[("page-ip", "status-ip"), ("page-port", "status-port")];

/// The environment variables of the renamed flags.
pub const VARIABLES: &[(&str, &str)] = &[
    ("FLANNELD_PAGE_IP", "FLANNELD_STATUS_IP"),
    ("FLANNELD_PAGE_PORT", "FLANNELD_STATUS_PORT"),
];

/// Returns the current name for a former name of a flag.
pub fn present(former: &str) -> Option<&'static str> {
    let flag = FLAGS.iter().find(|(name, _)| *name == former);
    flag.map(|(_, present)| *present)
}
