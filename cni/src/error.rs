//! Errors of a CNI plugin: JSON on standard output, and exit code 1.

use serde_json::json;

/// Unsupported CNI version in the configuration.
pub const INCOMPATIBLE_VERSION: u64 = 1;
/// Missing or invalid environment variable.
pub const INVALID_ENVIRONMENT: u64 = 4;
/// Failed read or write.
pub const IO_FAILURE: u64 = 5;
/// The configuration is malformed.
pub const DECODING_FAILURE: u64 = 6;
/// Invalid network configuration.
pub const INVALID_CONFIG: u64 = 7;
/// `CNI_NETNS` that is the plugin's own network namespace.
pub const INVALID_NETNS: u64 = 8;
/// Request that the runtime try again later.
pub const TRY_AGAIN_LATER: u64 = 11;
/// Inability of the plugin to serve ADD, as the result of STATUS.
pub const NOT_AVAILABLE: u64 = 50;
/// Any other error, with the code of the reference library.
pub const INTERNAL: u64 = 999;

/// The error of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniError {
    /// A code of the CNI specification, or a code of the delegate.
    pub code: u64,
    /// A sentence about the operation that failed.
    pub msg: String,
    /// The cause and the remedy. May be empty.
    pub details: String,
}

impl CniError {
    /// Creates an error without details.
    pub fn new(code: u64, msg: impl Into<String>) -> Self {
        Self {
            code,
            msg: msg.into(),
            details: String::new(),
        }
    }

    /// Sets the details.
    #[must_use]
    pub fn details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// Prefixes the message with the operation that failed.
    #[must_use]
    pub fn during(mut self, what: &str) -> Self {
        self.msg = format!("{what}: {}", self.msg);
        self
    }

    /// Returns the JSON for standard output, in this version of the CNI specification.
    pub fn json(&self, cni_version: &str) -> String {
        let mut error = json!({ "cniVersion": cni_version, "code": self.code, "msg": self.msg });
        if let (Some(error), false) = (error.as_object_mut(), self.details.is_empty()) {
            error.insert("details".to_owned(), self.details.as_str().into());
        }
        error.to_string()
    }

    /// Decodes the error that a delegate printed. Returns `None` if the output is not an error.
    pub fn read(output: &[u8]) -> Option<Self> {
        let error: serde_json::Value = serde_json::from_slice(output).ok()?;
        let text = |name: &str| {
            error
                .get(name)
                .and_then(serde_json::Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let code = error.get("code")?.as_u64()?;
        Some(Self {
            code,
            msg: text("msg"),
            details: text("details"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_survives_the_pass_through_a_delegate() {
        let error = CniError::new(TRY_AGAIN_LATER, "no \"file\"")
            .details("because")
            .during("adding");
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
