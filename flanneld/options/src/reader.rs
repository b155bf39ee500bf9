//! Reads the values of flags, and collects the mistakes in these values.

use crate::argv::Argv;
use crate::endpoint::holds_user;
use crate::value::{Origin, Parse, Value};
use std::path::PathBuf;
use types::{Family, Problem};

#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Go's `flag` package reports these before all others, because it reads the whole command line first.
    pub(crate) argv: Vec<Problem>,
    mistakes: Vec<Problem>,
    /// Questionable options, which do not keep the daemon from starting.
    pub(crate) warnings: Vec<Problem>,
}

impl Reader {
    /// Begins with the mistakes and warnings about the syntax of the command line.
    pub(crate) fn of(argv: Argv) -> Self {
        let mut warnings = Vec::new();
        if let Some(ignored) = &argv.ignored {
            // With `--etcd-password= secret`, the ignored argument is the secret.
            let secret = holds_user(ignored) || argv.gives_a_secret();
            let from: &str =
                if secret { "an argument that is not shown" } else { &format!("{ignored:?}") };
            warnings.push(Problem::new(
                "arguments-ignored",
                format!(
                    "flanneld ignores the command line from {from} onwards: flags end at the first argument that is not a flag; a switch takes its value with '=', as in --ip-masq=false"
                ),
            ));
        }
        Self { argv: argv.mistakes, mistakes: Vec::new(), warnings }
    }

    /// The warnings, or all mistakes if there are any.
    pub(crate) fn end(self) -> Result<Vec<Problem>, Vec<Problem>> {
        if self.argv.is_empty() && self.mistakes.is_empty() {
            Ok(self.warnings)
        } else {
            Err([self.argv, self.mistakes].concat())
        }
    }

    pub(crate) fn wrong(&mut self, mistake: Problem) {
        self.mistakes.push(mistake);
    }

    /// `None` if the flag has no value or the last one is invalid. Records a mistake for each invalid value, because
    /// Go's `flag` package also checks every value.
    pub(crate) fn last<'a, T: Parse>(
        &mut self,
        values: &'a [Value<T>],
    ) -> Option<(&'a Value<T>, T)> {
        for value in values {
            if let Err(why) = &value.parsed {
                let list = if value.origin == Origin::CommandLine {
                    &mut self.argv
                } else {
                    &mut self.mistakes
                };
                list.push(value.error(why.clone()));
            }
        }
        values.last().and_then(|value| Some((value, value.parsed.clone().ok()?)))
    }

    /// For a flag that accepts only a fixed set of words. The default if the value is invalid.
    pub(crate) fn choice<T: Parse + Default>(&mut self, values: &[Value<T>]) -> T {
        let Some(value) = values.last() else {
            return T::default();
        };
        value.parsed.clone().unwrap_or_else(|why| {
            self.wrong(value.error(why));
            T::default()
        })
    }

    /// The last value of a switch.
    pub(crate) fn on(&mut self, values: &[Value<bool>]) -> bool {
        self.last(values).is_some_and(|(_, on)| on)
    }

    /// The last value of an integer flag. Records a mistake and returns `low` if the number is not between `low` and
    /// `high`. `note` explains the number in the text of the mistake.
    pub(crate) fn ranged(
        &mut self,
        values: &[Value<i64>],
        low: u64,
        high: u64,
        note: &'static str,
    ) -> u64 {
        let Some((from, value)) = self.last(values) else {
            return low;
        };
        match u64::try_from(value) {
            Ok(value) if (low..=high).contains(&value) => value,
            _ => {
                self.wrong(from.unusable(
                    "out-of-range",
                    format!("{value} is out of range; it must be {low} to {high} ({note})"),
                ));
                low
            }
        }
    }

    /// `None` if the flag is unset or invalid.
    pub(crate) fn address<A: std::str::FromStr>(
        &mut self,
        values: &[Value<String>],
        family: Family,
    ) -> Option<A> {
        let value = given(values)?;
        let address = value.text.parse().ok();
        if address.is_none() {
            let (public, ip) = family.pick(("IP", "IPv4"), ("IPv6", "IPv6"));
            let text = &value.text;
            self.wrong(value.unusable(
                "not-a-public-address",
                format!("invalid public {public} address: {text}; it must be an {ip} address"),
            ));
        }
        address
    }
}

/// The last value of a flag; `None` if it is missing or empty.
pub(crate) fn given(values: &[Value<String>]) -> Option<&Value<String>> {
    values.last().filter(|value| !value.text.is_empty())
}

pub(crate) fn file(values: &[Value<String>]) -> Option<PathBuf> {
    given(values).map(|value| PathBuf::from(&value.text))
}
