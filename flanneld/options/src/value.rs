//! Values of flags with their origins. The parser does not stop at the first mistake.

use std::ffi::OsStr;
use std::fmt;
use std::marker::PhantomData;

use clap::builder::{PossibleValue, TypedValueParser, ValueParserFactory};
use clap::parser::ValueSource;
use clap::{Arg, Command};
use packet_engine::features::Features;
use traffic_rules::rules::UnknownSenders;
use types::Problem;

use crate::go;
use crate::settings::LogFormat;

/// Type of a flag's value.
pub(crate) trait Parse: Clone + Send + Sync + 'static {
    /// All words that are valid values; empty if the type has no fixed set of words.
    const WORDS: &'static [&'static str] = &[];

    fn parse(text: &str) -> Result<Self, Problem>;
}

impl Parse for String {
    fn parse(text: &str) -> Result<Self, Problem> {
        Ok(text.to_owned())
    }
}

impl Parse for bool {
    fn parse(text: &str) -> Result<Self, Problem> {
        go::truth(text).ok_or_else(|| {
            Problem::new("not-a-truth-value", format!("{text:?} is neither true nor false"))
        })
    }
}

impl Parse for i64 {
    fn parse(text: &str) -> Result<Self, Problem> {
        go::integer(text)
            .ok_or_else(|| Problem::new("not-an-integer", format!("{text:?} is not an integer")))
    }
}

/// A log verbosity in klog's syntax.
impl Parse for i32 {
    fn parse(text: &str) -> Result<Self, Problem> {
        go::decimal(text).ok_or_else(|| {
            Problem::new("not-a-decimal-integer", format!("{text:?} is not a decimal integer"))
        })
    }
}

impl Parse for LogFormat {
    const WORDS: &'static [&'static str] = &["text", "json"];

    fn parse(text: &str) -> Result<Self, Problem> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(Problem::new(
                "not-a-log-format",
                format!("{text:?} is not a log format; use text or json"),
            )),
        }
    }
}

impl Parse for UnknownSenders {
    const WORDS: &'static [&'static str] = &["off", "count", "drop"];

    fn parse(text: &str) -> Result<Self, Problem> {
        match text {
            "off" => Ok(Self::Off),
            "count" => Ok(Self::Count),
            "drop" => Ok(Self::Drop),
            _ => Err(Problem::new(
                "not-an-encap-peers-mode",
                format!("{text:?} is not a mode: use off, count or drop"),
            )),
        }
    }
}

impl Parse for Features {
    const WORDS: &'static [&'static str] = Self::NAMES;

    fn parse(text: &str) -> Result<Self, Problem> {
        Self::named(text).ok_or_else(|| Problem::new("not-a-datapath-mode", format!("{text:?} is not a mode: use offload, mmsg or plain, or omit the mode for the fastest available mode")))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    CommandLine,
    Environment,
    Default,
}

#[derive(Clone)]
pub(crate) struct Value<T> {
    pub(crate) origin: Origin,
    /// The flag for a default value.
    pub(crate) from: String,
    pub(crate) text: String,
    pub(crate) parsed: Result<T, Problem>,
}

impl<T> Value<T> {
    /// Names the flag or variable of this value, and its problem.
    pub(crate) fn error(&self, problem: Problem) -> Problem {
        let text = format!("{}: {problem}", self.from);
        Problem { parts: vec![problem], ..Problem::new("flag-value", text) }
    }

    /// [`Value::error`] of a problem with `code` and `text`.
    pub(crate) fn unusable(&self, code: &'static str, text: impl Into<String>) -> Problem {
        self.error(Problem::new(code, text))
    }
}

/// Omits the text of the value, because it may be a secret.
impl<T> fmt::Debug for Value<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").field("from", &self.from).finish_non_exhaustive()
    }
}

/// Never fails, because clap would stop at the first mistake.
#[derive(Clone)]
pub(crate) struct ValueParser<T>(PhantomData<fn() -> T>);

impl<T: Parse> ValueParserFactory for Value<T> {
    type Parser = ValueParser<T>;

    fn value_parser() -> Self::Parser {
        ValueParser(PhantomData)
    }
}

impl<T: Parse> TypedValueParser for ValueParser<T> {
    type Value = Value<T>;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        self.parse_ref_(command, arg, value, ValueSource::CommandLine)
    }

    fn parse_ref_(
        &self,
        _: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
        source: ValueSource,
    ) -> Result<Self::Value, clap::Error> {
        let text = value.to_string_lossy();
        let flag = format!("--{}", arg.and_then(Arg::get_long).unwrap_or_default());
        // Only `apply_variables` hides defaults.
        let is_variable = arg.is_some_and(Arg::is_hide_default_value_set);
        let (origin, from, text) = match (source, text.split_once('=')) {
            (ValueSource::DefaultValue, Some((variable, text))) if is_variable => {
                (Origin::Environment, variable, text)
            }
            (ValueSource::DefaultValue, _) => (Origin::Default, &*flag, &*text),
            _ => (Origin::CommandLine, &*flag, &*text),
        };
        Ok(Value { origin, from: from.to_owned(), parsed: T::parse(text), text: text.to_owned() })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        (!T::WORDS.is_empty()).then(|| {
            Box::new(T::WORDS.iter().map(PossibleValue::new))
                as Box<dyn Iterator<Item = PossibleValue>>
        })
    }
}
