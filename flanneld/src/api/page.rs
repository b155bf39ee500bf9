//! `GET /`: the status page. It is one HTML document and requests nothing from other hosts. Its script draws the
//! document of `/api/v1/view`.

use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use node_api::view::Sentence;
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

/// Names in double braces are placeholders.
const PAGE: &str = include_str!("page/page.html");

/// The browser accepts only the page's script and style, and sends requests only to this daemon.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |tag: &str| {
        let content = element(tag).unwrap_or_default();
        STANDARD.encode(Sha256::digest(content.as_bytes()))
    };
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
        hash("style"),
        hash("script")
    )
});

/// The content of the page's only element with this tag.
fn element(tag: &str) -> Option<&'static str> {
    let (_, rest) = PAGE.split_once(&format!("<{tag}>"))?;
    rest.split_once(&format!("</{tag}>")).map(|(content, _)| content)
}

/// Browsers without JavaScript show `sentence`.
pub fn page(node: &str, sentence: &Sentence) -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, policy()),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, html(node, sentence)).into_response()
}

/// The page's `Content-Security-Policy` header.
pub fn policy() -> &'static str {
    &POLICY
}

/// Escapes values and never searches them for placeholders.
pub fn html(node: &str, sentence: &Sentence) -> String {
    let mut out = String::with_capacity(PAGE.len() + 500);
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, after)) = after.split_once("}}") else {
            break;
        };
        out.push_str(before);
        let value = match name {
            "node" => node,
            "level" => sentence.level.name(),
            "sign" => sentence.level.sign(),
            "title" => &sentence.title,
            "text" => &sentence.text,
            _ => "",
        };
        out.push_str(&escaped(value));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Names come from the store, and may be hostile.
fn escaped(text: &str) -> String {
    types::printable::line(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use node_api::view::Health;

    #[test]
    fn page_is_small_and_has_one_style_and_one_script() {
        assert!(PAGE.len() < 64 << 10, "{}", PAGE.len());
        for tag in ["style", "script"] {
            assert!(element(tag).is_some_and(|content| !content.contains("{{")));
            assert_eq!(PAGE.matches(&format!("<{tag}")).count(), 1, "{tag}");
        }
        for forbidden in [" style=\"", "innerHTML", "http://", "https://", "eval(", "onclick=\""] {
            // The namespace of SVG is a name, not an address.
            let text = PAGE.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn hostile_names_are_text() {
        let sentence = Sentence {
            level: Health::Bad,
            title: "<img src=x onerror=alert(1)> is cut off {{text}}".into(),
            text: "\"'&\u{1b}[31m".into(),
        };
        let page = html("</title><script>alert(1)</script>", &sentence);
        assert!(!page.contains("<img") && !page.contains("<script>alert"), "{page}");
        assert!(page.contains("&lt;img src=x onerror=alert(1)&gt; is cut off {{text}}"));
        assert!(page.contains("&quot;&#39;&amp;\\u{1b}[31m"));
        assert_eq!(
            page.matches("{{").count(),
            PAGE.matches("{{title}}").count(),
            "only the placeholder in the name stays"
        );
    }
}
