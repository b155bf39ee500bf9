//! Classifies refusals of an API server by the HTTP status and by the reasons in the Status object. The text is parsed only to find a missing
//! permission or, from old servers, a too new resource version. A Status object names a missing permission nowhere else.

use crate::json::{Object, excerpt_within};
use http::StatusCode;
use types::Detail;
use types::problem::StoreCause;

/// From the `Status` object of a refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RefusedCall {
    /// Beginning of the server's message.
    pub words: String,
    /// The server does not have the requested resource version yet.
    pub(crate) is_too_new: bool,
    /// A permission that RBAC denies.
    pub forbidden: Option<Detail>,
}

impl RefusedCall {
    /// `body` is that of the HTTP response.
    pub(super) fn read(status: StatusCode, body: &str) -> Self {
        let object = Object::parse(body).ok();
        let message =
            object.as_ref().and_then(|object| object.read::<String>("message").ok().flatten());
        let message = message.unwrap_or_else(|| body.to_owned());
        let details =
            object.as_ref().and_then(|object| Object::parse(object.get("details")?.get()).ok());
        let causes =
            details.and_then(|details| details.read_raw_list("causes").ok()).unwrap_or_default();
        let reason = |raw: &serde_json::value::RawValue| {
            Object::parse(raw.get()).ok()?.read::<String>("reason").ok()?
        };
        let is_too_new = status == StatusCode::GATEWAY_TIMEOUT
            && (causes
                .into_iter()
                .any(|cause| reason(cause).as_deref() == Some("ResourceVersionTooLarge"))
                || message.contains("Too large resource version"));
        let forbidden = if status == StatusCode::FORBIDDEN { forbidden(&message) } else { None };
        Self { words: words(&message), is_too_new, forbidden }
    }
}

/// The beginning of a server's text, or `no reason was given` if it is empty.
pub(super) fn words(text: &str) -> String {
    const LIMIT: usize = 300;
    match text.trim() {
        "" => "no reason was given".to_owned(),
        text => excerpt_within(text, LIMIT),
    }
}

/// Parses a text such as `User "u" cannot list resource "nodes" in API group "" at the cluster scope`.
fn forbidden(text: &str) -> Option<Detail> {
    let (_, rest) = text.split_once("User \"")?;
    let (user, rest) = rest.split_once("\" cannot ")?;
    let (verb, rest) = rest.split_once(" resource \"")?;
    let (resource, _) = rest.split_once('"')?;
    let plain = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "/-.".contains(c))
    };
    (plain(verb) && plain(resource)).then(|| Detail::Forbidden {
        user: user.to_owned(),
        verb: verb.to_owned(),
        resource: resource.to_owned(),
    })
}

/// The doctor's finding about the store names it.
pub(super) fn cause(status: StatusCode) -> StoreCause {
    match status {
        StatusCode::UNAUTHORIZED => StoreCause::User,
        StatusCode::FORBIDDEN => StoreCause::Role,
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => StoreCause::Silent,
        _ => StoreCause::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_right_is_read_as_one_name_each() {
        let text = r#"nodes is forbidden: User "system:serviceaccount:kube-flannel:flannel" cannot list resource "nodes" in API group "" at the cluster scope"#;
        let body = serde_json::json!({ "kind": "Status", "message": text, "reason": "Forbidden" })
            .to_string();
        let refusal = RefusedCall::read(StatusCode::FORBIDDEN, &body);
        let Some(Detail::Forbidden { user, verb, resource }) = refusal.forbidden else {
            panic!("the text names the permission")
        };
        assert_eq!(
            (user.as_str(), verb.as_str(), resource.as_str()),
            ("system:serviceaccount:kube-flannel:flannel", "list", "nodes")
        );
        assert_eq!(RefusedCall::read(StatusCode::UNAUTHORIZED, &body).forbidden, None);
        for other in ["", "a policy refuses", "User \"x\" cannot ; reboot resource \"nodes\" in"] {
            assert_eq!(RefusedCall::read(StatusCode::FORBIDDEN, other).forbidden, None, "{other}");
        }
    }

    #[test]
    fn version_that_is_too_new_is_recognised_by_its_cause() {
        let body = r#"{"kind":"Status","message":"x","reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"y"}]}}"#;
        assert!(
            RefusedCall::read(StatusCode::GATEWAY_TIMEOUT, body).is_too_new
                && !RefusedCall::read(StatusCode::GONE, body).is_too_new
        );
        assert!(
            RefusedCall::read(
                StatusCode::GATEWAY_TIMEOUT,
                r#"{"message":"Too large resource version: 7, current: 3"}"#
            )
            .is_too_new
        );
        assert!(
            !RefusedCall::read(
                StatusCode::GATEWAY_TIMEOUT,
                r#"{"message":"timeout","details":{"causes":[7]}}"#
            )
            .is_too_new
        );
    }
}
