//! Supported versions of the CNI specification, and the check whether a version includes a verb.

use crate::error::{CniError, INCOMPATIBLE_VERSION};
use serde_json::json;

/// Oldest first.
pub const SUPPORTED: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
pub const NEWEST: &str = "1.1.0";
/// The CNI version of a configuration without `cniVersion`.
const OLDEST: &str = "0.1.0";

/// The oldest if `cni_version` is empty.
pub fn of(cni_version: &str) -> &str {
    if cni_version.is_empty() { OLDEST } else { cni_version }
}

/// An error lists the supported versions.
pub fn supported(cni_version: &str) -> Result<(), CniError> {
    let version = of(cni_version);
    if SUPPORTED.contains(&version) {
        return Ok(());
    }
    let why = format!("config is \"{version}\", plugin supports {SUPPORTED:?}");
    Err(CniError::new(INCOMPATIBLE_VERSION, "incompatible CNI versions").details(why))
}

/// Checks that the CNI version of a configuration includes a verb.
pub fn allows(cni_version: &str, verb: &str, since: &str) -> Result<(), CniError> {
    let place = |version: &str| SUPPORTED.iter().position(|known| *known == version);
    // `supported` reports an unknown version as incompatible.
    match (place(of(cni_version)), place(since)) {
        (Some(version), Some(since)) if version < since => Err(CniError::new(
            INCOMPATIBLE_VERSION,
            format!("config version does not allow {verb}"),
        )),
        _ => supported(cni_version),
    }
}

/// The JSON that the plugin prints for VERSION.
pub fn answer() -> String {
    json!({ "cniVersion": NEWEST, "supportedVersions": SUPPORTED }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_need_a_configuration_of_their_version() {
        let code = |result: Result<(), CniError>| result.map_err(|error| error.msg);
        assert!(SUPPORTED.iter().chain([&""]).all(|version| supported(version).is_ok()));
        assert_eq!(
            code(allows("0.3.1", "CHECK", "0.4.0")),
            Err("config version does not allow CHECK".to_owned())
        );
        assert_eq!(
            code(allows("", "GC", "1.1.0")),
            Err("config version does not allow GC".to_owned())
        );
        assert_eq!(
            code(allows("9.0.0", "GC", "1.1.0")),
            Err("incompatible CNI versions".to_owned())
        );
        assert_eq!(code(allows("1.0.0", "CHECK", "0.4.0")), Ok(()));
    }
}
