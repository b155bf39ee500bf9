//! The key `Checks` of the `Backend` object, which all backends with an engine of ours understand.

use packet_engine::table::Checks;
use subnet_lease::json::Object;

/// `Checks`: how much of a received packet is checked.
///
/// # Errors
/// The key and the remedy.
pub fn checks(object: &Object) -> Result<Checks, String> {
    match object.read::<String>("Checks")?.unwrap_or_default().to_ascii_lowercase().as_str() {
        "" | "cluster" => Ok(Checks::Cluster),
        "strict" => Ok(Checks::Strict),
        "off" => Ok(Checks::Off),
        other => Err(format!("Checks is {other:?}: it has to be \"cluster\", \"strict\" or \"off\"")),
    }
}
