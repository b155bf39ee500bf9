//! Reads the container runtime's input: environment variables and a network configuration. Variables and
//! top-level keys are validated before any change.

use crate::attachment::{Attachment, is_word, valid_container, valid_interface};
use crate::conf::Conf;
use crate::error::{CniError, INVALID_CONFIG, INVALID_ENVIRONMENT};
use std::ffi::OsString;

/// Declares each CNI verb with its name, so that the parser of `CNI_COMMAND` knows every verb.
macro_rules! verbs {
    ($($(#[$doc:meta])* $verb:ident = $name:literal,)*) => {
        /// From `CNI_COMMAND`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Verb {
            $($(#[$doc])* $verb,)*
        }

        impl Verb {
            /// The name in `CNI_COMMAND`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Verb::$verb => $name,)*
                }
            }

            fn parse(text: &str) -> Option<Self> {
                match text {
                    $($name => Some(Verb::$verb),)*
                    _ => None,
                }
            }
        }
    };
}

verbs! {
    /// Adds an interface to a container.
    Add = "ADD",
    /// Removes an interface from a container.
    Del = "DEL",
    /// Checks that an interface still matches the result of ADD.
    Check = "CHECK",
    /// Removes the files, addresses and interfaces of attachments that are no longer valid.
    Gc = "GC",
    /// Reports whether the plugin can serve ADD.
    Status = "STATUS",
}

impl Verb {
    /// The environment variables that the verb needs, without `CNI_COMMAND`.
    const fn required(self) -> &'static [&'static str] {
        match self {
            Verb::Add | Verb::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
            Verb::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
            Verb::Gc | Verb::Status => &["CNI_PATH"],
        }
    }

    /// Whether calls with this verb refer to one interface of one container.
    const fn has_attachment(self) -> bool {
        match self {
            Verb::Add | Verb::Del | Verb::Check => true,
            Verb::Gc | Verb::Status => false,
        }
    }
}

/// A validated call.
#[derive(Clone, Debug)]
pub struct Call {
    pub verb: Verb,
    /// GC and STATUS do not use it.
    pub attachment: Attachment,
    /// `CNI_NETNS`. May be empty.
    pub netns: String,
    /// Whether the runtime allows the plugin's own network namespace as `CNI_NETNS` (`CNI_NETNS_OVERRIDE`).
    pub netns_override: bool,
    /// From standard input.
    pub conf: Conf,
}

impl Call {
    /// Reads and validates a call; `stdin` only if the environment variables are valid. An error names the
    /// missing or invalid variable or key.
    pub fn read(
        command: &str,
        variable: impl Fn(&str) -> Option<OsString>,
        stdin: impl FnOnce() -> Result<Vec<u8>, CniError>,
    ) -> Result<Self, CniError> {
        let verb = Verb::parse(command).ok_or_else(|| {
            CniError::new(INVALID_ENVIRONMENT, format!("unknown CNI_COMMAND: {command}"))
        })?;
        let text = |name: &str| {
            variable(name).map_or_else(String::new, |value| value.to_string_lossy().into_owned())
        };
        let missing: Vec<&str> =
            verb.required().iter().copied().filter(|name| text(name).is_empty()).collect();
        if !missing.is_empty() {
            return Err(CniError::new(
                INVALID_ENVIRONMENT,
                format!("required env variables [{}] missing", missing.join(",")),
            ));
        }
        let attachment =
            Attachment { container: text("CNI_CONTAINERID"), interface: text("CNI_IFNAME") };
        if verb.has_attachment() {
            valid_container(&attachment.container)?;
            valid_interface(&attachment.interface)?;
        }
        let conf = Conf::parse(&stdin()?)?;
        valid_network(&conf.name)?;
        let netns_override =
            matches!(text("CNI_NETNS_OVERRIDE").to_ascii_uppercase().as_str(), "1" | "TRUE");
        Ok(Self { verb, attachment, netns: text("CNI_NETNS"), netns_override, conf })
    }
}

fn valid_network(name: &str) -> Result<(), CniError> {
    match name {
        "" => Err(CniError::new(INVALID_CONFIG, "missing network name")),
        name if is_word(name) => Ok(()),
        name => Err(CniError::new(INVALID_CONFIG, "invalid characters found in network name")
            .details(format!("{name:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(command: &str, variables: &[(&str, &str)], conf: &str) -> Result<Call, CniError> {
        let variable = |name: &str| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| OsString::from(value))
        };
        Call::read(command, variable, || Ok(conf.as_bytes().to_vec()))
    }

    const CONF: &str = r#"{"name":"cbr0","type":"flannel"}"#;

    #[test]
    fn each_verb_has_its_variables() {
        let all = [
            ("CNI_CONTAINERID", "c0ffee"),
            ("CNI_NETNS", "/run/netns/x"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
        ];
        for (verb, needed) in [("ADD", 4), ("CHECK", 4), ("DEL", 3), ("GC", 1), ("STATUS", 1)] {
            assert_eq!(read(verb, &all, CONF).unwrap().verb.as_str(), verb);
            let error = read(verb, &[], CONF).unwrap_err();
            assert_eq!(
                (error.code, error.msg.matches("CNI_").count()),
                (INVALID_ENVIRONMENT, needed),
                "{verb}: {}",
                error.msg
            );
        }
        let error = read("MOVE", &all, CONF).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (4, "unknown CNI_COMMAND: MOVE"));
        assert_eq!(read("ADD", &all, "{}").unwrap_err().code, INVALID_CONFIG);
        assert_eq!(read("ADD", &all, r#"{"name":"../x"}"#).unwrap_err().code, INVALID_CONFIG);
        assert_eq!(read("ADD", &all, "[]").unwrap_err().code, 6);
    }
}
