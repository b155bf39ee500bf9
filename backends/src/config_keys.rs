//! Keys of the `Backend` object that several backends have.

use crate::config_error::Fault;
use packet_engine::table::Checks;
use std::ops::RangeInclusive;
use subnet_lease::json::Object;

/// Parses a number, `None` if the key is absent.
///
/// # Errors
/// The value is no number, or out of range.
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

/// Parses a word, empty if the key is absent.
///
/// # Errors
/// The value is no string.
pub(crate) fn word(object: &Object, key: &str) -> Result<String, Fault> {
    let word = object.read::<String>(key).map_err(Fault::Member)?;
    Ok(word.unwrap_or_default())
}

/// Parses `Checks`, the checks of packets that the packet engine receives.
///
/// # Errors
/// The key and the remedy.
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
