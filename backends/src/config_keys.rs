//! Keys of the `Backend` object that several backends share.

use crate::config_error::Fault;
use packet_engine::table::Checks;
use std::ops::RangeInclusive;
use subnet_lease::json::Object;

/// Parses a number. Returns `None` if the key is absent.
///
/// # Errors
/// Returns an error if the value is not a number or is out of range.
pub(crate) fn number<N>(
    object: &Object,
    key: &'static str,
    range: RangeInclusive<N>,
) -> Result<Option<N>, Fault>
where
    N: TryFrom<i64> + Into<u32> + PartialOrd + Copy,
{
    let Some(value) = object.read::<i64>(key).map_err(Fault::Member)? else {
        return Ok(None);
    };
    let (least, most) = range.into_inner();
    let number = N::try_from(value)
        .ok()
        .filter(|number| (least..=most).contains(number));
    number.map(Some).ok_or(Fault::Range {
        key,
        value,
        least: least.into(),
        most: most.into(),
    })
}

/// Parses a word. Returns an empty string if the key is absent.
///
/// # Errors
/// Returns an error if the value is not a string.
pub(crate) fn word(object: &Object, key: &str) -> Result<String, Fault> {
    let word = object.read::<String>(key).map_err(Fault::Member)?;
    Ok(word.unwrap_or_default())
}

/// Parses `Checks`, the checks of packets that the packet engine receives.
///
/// # Errors
/// Returns an error, with the key and the remedy, if the value is not a string or not a known word.
pub(crate) fn checks(object: &Object) -> Result<Checks, Fault> {
    match word(object, "Checks")?.to_ascii_lowercase().as_str() {
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
