//! Logs peers whose state changes: one line for each peer, up to ten lines a minute.

use crate::node::{CommonNotice, Notice};
use crate::target::Target;
use std::borrow::Cow;
use std::time::Duration;
use tracing::{Level, debug, info, warn};
use types::printable;
use types::reachability::{Impact, State};

/// Maximum number of logged lines in a [`WINDOW`].
const MAX_LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// Counts the log lines in the current window.
#[derive(Debug, Default)]
pub(super) struct Log {
    since: Duration,
    lines: u32,
    left_out: u32,
}

impl Log {
    pub(super) fn report(&mut self, now: Duration, notices: &[Notice]) {
        for notice in notices {
            // The first verdict on a peer that is well is not worth a notice.
            if notice.was == State::Unknown && notice.is.impact() <= Impact::None {
                line(notice, Level::DEBUG);
                continue;
            }
            if now.saturating_sub(self.since) >= WINDOW {
                if self.left_out > 0 {
                    warn!(
                        count = self.left_out,
                        remedy = "run `flannelctl peers` to list all states",
                        "more peers changed their state than the log shows"
                    );
                }
                *self = Self { since: now, ..Self::default() };
            }
            if self.lines >= MAX_LINES {
                self.left_out += 1;
                continue;
            }
            self.lines += 1;
            line(
                notice,
                if notice.is.impact() >= Impact::Some { Level::WARN } else { Level::INFO },
            );
        }
    }
}

/// Logs the beginning and the end of faults that all peers of a family have in common.
pub(super) fn report_common(notices: &[CommonNotice]) {
    for notice in notices {
        let CommonNotice { family, state, asked, peers } = *notice;
        if state.impact() == Impact::All {
            let reason = meaning(state);
            warn!(
                %family, asked, peers, to = %state, reason,
                remedy = "run `flannelctl doctor` to find the cause",
                "all probed peers have the same fault; assuming the same fault for the other peers"
            );
        } else {
            info!(%family, peers, "peers reply again; their own verdicts apply");
        }
    }
}

fn line(notice: &Notice, level: Level) {
    let Notice { target, was, is } = notice;
    let peer = name(target).map(tracing::field::display);
    let (subnet, address, reason) = (target.subnet, target.address, meaning(*is));
    macro_rules! log {
        ($level:ident) => {
            $level!(peer, %subnet, %address, from = %was, to = %is, reason, "the state of a peer changed")
        };
    }
    match level {
        Level::WARN => log!(warn),
        Level::INFO => log!(info),
        _ => log!(debug),
    }
}

fn name(target: &Target) -> Option<Cow<'_, str>> {
    target.name.as_deref().map(printable::value)
}

fn meaning(state: State) -> &'static str {
    match state {
        State::Unknown => "its state is unknown",
        State::Well => "probes get replies",
        State::Slow => "replies take much longer than usual",
        State::LosesSome => "some probes get no reply",
        State::SmallMtu => "packets as large as the MTU of pods do not reach the peer",
        State::OneWay => {
            "the peer receives this node's probes, but the peer's replies over the overlay do not arrive"
        }
        State::OverlayCut => {
            "the peer replies over the underlay, but this node's packets over the overlay do not reach the peer"
        }
        State::CutOff => "the peer does not reply over the overlay or the underlay",
        State::WrongNode => "another node replies at the peer's address",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_one_printable_line() {
        let target = Target {
            id: None,
            name: Some("node\n-3".into()),
            subnet: "10.5.3.0/24".parse().unwrap(),
            address: "192.0.2.3".parse().unwrap(),
            primary: true,
            on_link: true,
        };
        let name = name(&target).unwrap();
        assert!(name.starts_with("node") && name.ends_with("-3") && !name.contains('\n'), "{name}");
        assert!(meaning(State::CutOff).contains("does not reply over"));
    }

    #[test]
    fn thousand_changes_are_a_few_lines() {
        let target = Target {
            id: None,
            name: None,
            subnet: "10.5.3.0/24".parse().unwrap(),
            address: "192.0.2.3".parse().unwrap(),
            primary: true,
            on_link: true,
        };
        let notices = vec![Notice { target, was: State::Well, is: State::CutOff }; 1000];
        let mut log = Log::default();
        log.report(Duration::from_secs(100), &notices);
        assert_eq!((log.lines, log.left_out), (MAX_LINES, 990));
        log.report(Duration::from_secs(200), &notices[..3]);
        assert_eq!((log.lines, log.left_out), (3, 0));
    }
}
