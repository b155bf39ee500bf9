//! The key `Checks` of the `Backend` object, for all backends with a packet engine.

use crate::config_error::Fault;
use packet_engine::table::Checks;
use subnet_lease::json::Object;

/// Parses `Checks`, the checks of received packets.
///
/// # Errors
/// The key and the remedy.
pub(crate) fn checks(object: &Object) -> Result<Checks, Fault> {
    match object
        .read::<String>("Checks")
        .map_err(Fault::Member)?
        .unwrap_or_default()
        .to_ascii_lowercase()
        .as_str()
    {
        "" | "cluster" => Ok(Checks::Cluster),
        "strict" => Ok(Checks::Strict),
        "off" => Ok(Checks::Off),
        other => Err(Fault::Word {
            key: "Checks",
            value: other.to_owned(),
            words: &["cluster", "strict", "off"],
        }),
    }
}
