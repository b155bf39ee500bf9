//! Errors of a CNI plugin, which the plugin prints as JSON on standard output with exit code 1.

use serde_json::json;

/// Error code: the plugin does not support the CNI version of the configuration.
pub const INCOMPATIBLE_VERSION: u64 = 1;
/// Error code: an environment variable is missing or invalid.
pub const INVALID_ENVIRONMENT: u64 = 4;
/// Error code: a read or write of a file failed.
pub const IO_FAILURE: u64 = 5;
/// Error code: the configuration is not valid JSON or has a value of the wrong type.
pub const DECODING_FAILURE: u64 = 6;
/// Error code: the network configuration is invalid.
pub const INVALID_CONFIG: u64 = 7;
/// Error code: `CNI_NETNS` is the plugin's own network namespace.
pub const INVALID_NETNS: u64 = 8;
/// Error code: the runtime should repeat the call later.
pub const TRY_AGAIN_LATER: u64 = 11;
/// Error code: STATUS reports that the plugin cannot serve ADD.
pub const NOT_AVAILABLE: u64 = 50;
/// Error code: any other error. The reference library uses this code.
pub const INTERNAL: u64 = 999;

/// The error of a call of the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniError {
    /// The error code, from the CNI specification or from the delegate.
    pub code: u64,
    /// A short message that names the failed operation.
    pub msg: String,
    /// The cause of the error and the remedy. May be empty.
    pub details: String,
}

impl CniError {
    /// Creates an error with empty details.
    pub fn new(code: u64, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: String::new() }
    }

    /// Sets the details.
    #[must_use]
    pub fn details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// Adds the failed operation before the error message.
    #[must_use]
    pub fn during(mut self, what: &str) -> Self {
        self.msg = format!("{what}: {}", self.msg);
        self
    }

    /// Returns the error as JSON for standard output, in the given version of the CNI specification.
    pub fn json(&self, cni_version: &str) -> String {
        let mut error = json!({ "cniVersion": cni_version, "code": self.code, "msg": self.msg });
        if let (Some(error), false) = (error.as_object_mut(), self.details.is_empty()) {
            error.insert("details".to_owned(), self.details.as_str().into());
        }
        error.to_string()
    }

    /// Decodes the CNI error that a delegate printed. Returns `None` if the output is not a CNI error.
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
