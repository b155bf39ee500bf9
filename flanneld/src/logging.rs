//! Log lines on stderr, as text or as JSON.

mod out;
mod recent;
mod visible;

pub use out::{dropped, lost};
pub use recent::recent;

use options::{LogFormat, Logging};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use visible::Visible;

/// A valid environment variable RUST_LOG takes precedence over the verbosity flag.
pub fn init(logging: Logging) {
    let (filter, complaint) = match std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty()) {
        None => (EnvFilter::new(directives(logging.verbosity)), None),
        Some(text) => match EnvFilter::try_new(&text) {
            Ok(filter) => (filter, None),
            Err(error) => (EnvFilter::new(directives(logging.verbosity)), Some((text, error))),
        },
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(out::Stderr)
        .log_internal_errors(false);
    // A subscriber that is already set (tests) stays.
    let _ = match logging.format {
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .map_event_format(Visible::json)
            .finish()
            .with(recent::Recent)
            .try_init(),
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            let text = builder
                .with_ansi(colours)
                .with_target(logging.verbosity > 0)
                .fmt_fields(visible::fields());
            text.map_event_format(|format| Visible::text(format.with_ansi(colours), colours))
                .finish()
                .with(recent::Recent)
                .try_init()
        }
    };
    if let Some((value, error)) = complaint {
        tracing::warn!(name = "RUST_LOG", value, error = %error, "ignoring an environment variable");
    }
}

/// For a klog verbosity. 1 or more raises the log level of flannel's crates; 4 or more also that of libraries.
fn directives(verbosity: i32) -> &'static str {
    match verbosity {
        // flanneld logs once what kube's own lines repeat with each connection.
        ..=0 => "info,kube_client=error",
        1..=3 => "info,kube_client=error,flanneld=debug,backends=debug,subnet_lease=debug",
        4.. => "debug,flanneld=trace,backends=trace,subnet_lease=trace",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbosity_maps_to_levels() {
        for (verbosity, want) in [
            (-1, "info"),
            (0, "info"),
            (1, "flanneld=debug"),
            (3, "flanneld=debug"),
            (4, "flanneld=trace"),
            (10, "flanneld=trace"),
        ] {
            assert!(directives(verbosity).contains(want), "{verbosity}");
            EnvFilter::try_new(directives(verbosity)).unwrap();
        }
    }
}
