//! What the log says of peers whose state changes: a line each, and not more than a reader can take in.

use crate::node::Notice;
use std::time::Duration;
use tracing::{debug, info, warn};
use types::printable;
use types::reachability::{Impact, State};

/// Lines in [`WINDOW`].
const LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// Counts lines.
#[derive(Debug, Default)]
pub(super) struct Log {
    since: Duration,
    lines: u32,
    left_out: u32,
}

impl Log {
    /// Logs the changes.
    pub(super) fn tell(&mut self, now: Duration, notices: &[Notice]) {
        for notice in notices {
            // Of a peer that is seen for the first time there is nothing to tell, if all is well.
            if notice.was == State::Unknown && notice.is.impact() <= Impact::None {
                debug!("{}", text(notice));
                continue;
            }
            if now.saturating_sub(self.since) >= WINDOW {
                if self.left_out > 0 {
                    warn!(
                        "the state of peers changed {} more times; `flannelctl peers` shows all of them",
                        self.left_out
                    );
                }
                *self = Self {
                    since: now,
                    ..Self::default()
                };
            }
            if self.lines >= LINES {
                self.left_out += 1;
                continue;
            }
            self.lines += 1;
            if notice.is.impact() >= Impact::Some {
                warn!("{}", text(notice));
            } else {
                info!("{}", text(notice));
            }
        }
    }
}

fn text(notice: &Notice) -> String {
    let target = &notice.target;
    let name = target
        .name
        .as_deref()
        .map_or_else(String::new, |name| format!("{} ", printable::value(name)));
    let meaning = match notice.is {
        State::Unknown => "nothing is known of it",
        State::Well => "packets arrive there, and answers come back",
        State::Slow => "answers take much longer than those of other peers",
        State::LosesSome => "some probes get no answer",
        State::SmallMtu => "packets as large as the MTU of pods do not arrive there",
        State::OneWay => "it hears us, but its answers through the overlay network do not arrive",
        State::OverlayCut => {
            "it answers, but what we send through the overlay network does not arrive there"
        }
        State::CutOff => "it answers nothing, through the overlay network or beside it",
        State::WrongNode => "another node answers at its address",
    };
    format!(
        "peer {name}({}, {}): {}, was {}: {meaning}",
        target.subnet, target.address, notice.is, notice.was
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;

    #[test]
    fn a_line_names_the_peer_and_what_it_means() {
        let name = Some("node\n-3".into());
        let target = Target {
            id: None,
            name,
            subnet: "10.5.3.0/24".parse().unwrap(),
            address: "192.0.2.3".parse().unwrap(),
            primary: true,
        };
        let line = text(&Notice {
            target,
            was: State::Well,
            is: State::CutOff,
        });
        assert!(
            !line.contains('\n')
                && line.contains("(10.5.3.0/24, 192.0.2.3): cut-off, was well: it answers nothing"),
            "{line}"
        );
    }

    #[test]
    fn a_storm_is_a_few_lines() {
        let target = Target {
            id: None,
            name: None,
            subnet: "10.5.3.0/24".parse().unwrap(),
            address: "192.0.2.3".parse().unwrap(),
            primary: true,
        };
        let notices = vec![
            Notice {
                target,
                was: State::Well,
                is: State::CutOff
            };
            1000
        ];
        let mut log = Log::default();
        log.tell(Duration::from_secs(100), &notices);
        assert_eq!((log.lines, log.left_out), (LINES, 990));
        log.tell(Duration::from_secs(200), &notices[..3]);
        assert_eq!((log.lines, log.left_out), (3, 0));
    }
}
