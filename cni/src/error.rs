//! Errors of a CNI plugin, which are printed as JSON on standard output, with exit code 1.

use serde_json::json;

/// The plugin does not support the CNI version of the configuration.
pub const INCOMPATIBLE_VERSION: u64 = 1;
/// An environment variable is missing or invalid.
pub const INVALID_ENVIRONMENT: u64 = 4;
/// A read or write of a file failed.
pub const IO_FAILURE: u64 = 5;
/// The configuration is not valid JSON or has a value of the wrong type.
pub const DECODING_FAILURE: u64 = 6;
pub const INVALID_CONFIG: u64 = 7;
/// `CNI_NETNS` is the plugin's own network namespace.
pub const INVALID_NETNS: u64 = 8;
/// The runtime should repeat the call later.
pub const TRY_AGAIN_LATER: u64 = 11;
/// STATUS reports that the plugin cannot serve ADD.
pub const NOT_AVAILABLE: u64 = 50;
/// Any other error, as in the reference library.
pub const INTERNAL: u64 = 999;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniError {
    /// From the CNI specification or from the delegate.
    pub code: u64,
    /// Short; names the failed operation.
    pub msg: String,
    /// The cause and the remedy. May be empty.
    pub details: String,
}

impl CniError {
    pub fn new(code: u64, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: String::new() }
    }

    #[must_use]
    pub fn details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// Puts the failed operation before the message.
    #[must_use]
    pub fn during(mut self, what: &str) -> Self {
        self.msg = format!("{what}: {}", self.msg);
        self
    }

    /// For standard output, in the given version of the CNI specification.
    pub fn json(&self, cni_version: &str) -> String {
        let mut error = json!({ "cniVersion": cni_version, "code": self.code, "msg": self.msg });
        if let (Some(error), false) = (error.as_object_mut(), self.details.is_empty()) {
            error.insert("details".to_owned(), self.details.as_str().into());
        }
        error.to_string()
    }

    /// What a delegate printed; `None` if it is not a CNI error.
    pub fn read(output: &[u8]) -> Option<Self> {
        let error: serde_json::Value = serde_json::from_slice(output).ok()?;
        let text = |name: &str| {
            error.get(name).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
        };
        let code = error.get("code")?.as_u64()?;
        Some(Self { code, msg: text("msg"), details: text("details") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_survives_the_pass_through_a_delegate() {
        let error =
            CniError::new(TRY_AGAIN_LATER, "no \"file\"").details("because").during("adding");
        assert_eq!(
            error.json("1.0.0"),
            r#"{"cniVersion":"1.0.0","code":11,"details":"because","msg":"adding: no \"file\""}"#
        );
        assert_eq!(CniError::read(error.json("1.0.0").as_bytes()), Some(error));
        for no_error in ["", "{}", "7", r#"{"code":"7"}"#, r#"{"msg":"x"}"#] {
            assert_eq!(CniError::read(no_error.as_bytes()), None, "{no_error}");
        }
    }
}
