//! Values of flags with their origins. The parser does not stop at the first mistake.

use std::ffi::OsStr;
use std::fmt;
use std::marker::PhantomData;

use clap::builder::{PossibleValue, TypedValueParser, ValueParserFactory};
use clap::parser::ValueSource;
use clap::{Arg, Command};
use packet_engine::features::Features;
use traffic_rules::rules::UnknownSenders;

use crate::go;
use crate::mistake::{Fault, Mistake};
use crate::settings::LogFormat;

/// Type of a flag's value.
pub(crate) trait Parse: Clone + Send + Sync + 'static {
    /// All words that are valid values; empty if the type has no fixed set of words.
    const WORDS: &'static [&'static str] = &[];

    /// Parses a text.
    ///
    /// # Errors
    /// Returns an error if the text is not a value of this type.
    fn parse(text: &str) -> Result<Self, Fault>;
}

impl Parse for String {
    fn parse(text: &str) -> Result<Self, Fault> {
        Ok(text.to_owned())
    }
}

impl Parse for bool {
    fn parse(text: &str) -> Result<Self, Fault> {
        go::truth(text).ok_or_else(|| Fault::Truth(text.to_owned()))
    }
}

impl Parse for i64 {
    fn parse(text: &str) -> Result<Self, Fault> {
        go::integer(text).ok_or_else(|| Fault::Integer(text.to_owned()))
    }
}

/// A log verbosity in klog's syntax.
impl Parse for i32 {
    fn parse(text: &str) -> Result<Self, Fault> {
        go::decimal(text).ok_or_else(|| Fault::Decimal(text.to_owned()))
    }
}

impl Parse for LogFormat {
    const WORDS: &'static [&'static str] = &["text", "json"];

    fn parse(text: &str) -> Result<Self, Fault> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(Fault::LogFormat(text.to_owned())),
        }
    }
}

impl Parse for UnknownSenders {
    const WORDS: &'static [&'static str] = &["off", "count", "drop"];

    fn parse(text: &str) -> Result<Self, Fault> {
        match text {
            "off" => Ok(Self::Off),
            "count" => Ok(Self::Count),
            "drop" => Ok(Self::Drop),
            _ => Err(Fault::UnknownSenders(text.to_owned())),
        }
    }
}

impl Parse for Features {
    const WORDS: &'static [&'static str] = Self::NAMES;

    fn parse(text: &str) -> Result<Self, Fault> {
        Self::named(text).map_err(|_| Fault::Datapath(text.to_owned()))
    }
}

/// Origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    CommandLine,
    Environment,
    Default,
}

/// One value of a flag.
#[derive(Clone)]
pub(crate) struct Value<T> {
    pub(crate) origin: Origin,
    /// The flag or environment variable with the value; the flag for a default value.
    pub(crate) from: String,
    pub(crate) text: String,
    pub(crate) parsed: Result<T, Fault>,
}

impl<T> Value<T> {
    /// Returns a mistake that names the flag or variable of this value, and the fault.
    pub(crate) fn mistake(&self, fault: Fault) -> Mistake {
        Mistake::Value { from: self.from.clone(), fault }
    }
}

/// Omits the text of the value, because the text may be a secret.
impl<T> fmt::Debug for Value<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").field("from", &self.from).finish_non_exhaustive()
    }
}

/// Creates a [`Value`] from a text. The parser never fails, because clap would stop at the first mistake.
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
