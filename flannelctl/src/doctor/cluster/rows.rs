//! The findings of all nodes, from this node's daemon. The others send only the names of the checks that
//! found a problem.

use std::collections::BTreeMap;

use anyhow::Result;
use doctor::Severity;
use ipnet::IpNet;
use node_api::{Peers, Source, Unanswered};
use probing::view::{Cell, Own, Row};
use types::reachability::State;

use super::answer::{Answer, Answers};
use crate::ask;
use crate::peers;
use crate::place::Place;

/// The report of this node's doctor, and the other nodes' reports about themselves.
pub(super) fn ask(place: &Place) -> Result<Answers> {
    let own = ask::findings(&place.subnet_file)?;
    let peers = peers::with_rows(&place.subnet_file)?;
    let here =
        Answer { node: own.node.clone(), is_own: true, causes: own.causes().cloned().collect() };
    let (others, unanswered) = others(&peers);
    Ok(Answers {
        source: Source::Probes,
        answered: std::iter::once(here).chain(others).collect(),
        unanswered,
    })
}

fn others(all: &Peers) -> (Vec<Answer>, Vec<Unanswered>) {
    let names: BTreeMap<IpNet, String> = all
        .peers
        .iter()
        .flat_map(|probed| {
            let title = probed.peer.title();
            probed.peer.subnets.iter().map(move |net| (*net, title.clone()))
        })
        .collect();
    let rows: BTreeMap<IpNet, &Row> = all.rows.iter().map(|row| (row.subnet, row)).collect();
    let (mut answered, mut unanswered) = (Vec::new(), Vec::new());
    for probed in &all.peers {
        let node = probed.peer.title();
        let row = probed.peer.subnets.iter().find_map(|net| rows.get(net));
        let row = row.filter(|row| peers::is_fresh(row, all));
        match row.and_then(|row| Some((row, row.own.as_ref()?))) {
            Some((row, own)) => {
                answered.push(Answer::reported(node, causes(own, &row.peers, &names)));
            }
            None => {
                let is_go =
                    probed.verdicts.iter().any(|verdict| verdict.id.is_none() && verdict.ping_only);
                unanswered.push(Unanswered {
                    node,
                    why: if is_go {
                        "Go flannel runs on the node and has no doctor; run flannelctl doctor on the node"
                    } else {
                        "the node does not reply to this node's probes; run flannelctl doctor on the node"
                    }
                    .to_owned(),
                });
            }
        }
    }
    (answered, unanswered)
}

/// The checks in another node's report, each with its severity and the peers that it concerns.
fn causes(
    own: &Own,
    cells: &[Cell],
    names: &BTreeMap<IpNet, String>,
) -> Vec<(String, Severity, Vec<String>)> {
    let (broken, degraded) = (usize::from(own.broken), usize::from(own.degraded));
    own.checks
        .iter()
        .enumerate()
        .map(|(number, check)| {
            let severity = match number {
                number if number < broken => Severity::Broken,
                number if number - broken < degraded => Severity::Degraded,
                _ => Severity::Risk,
            };
            (check.clone(), severity, concerned(check, cells, names))
        })
        .collect()
}

/// The peers that a check concerns, according to their states in the report.
fn concerned(check: &str, cells: &[Cell], names: &BTreeMap<IpNet, String>) -> Vec<String> {
    let fits = |cell: &&Cell| match check {
        "peer-cut" | "silent-node" => cell.state == State::CutOff,
        "overlay-cut" => cell.state == State::OverlayCut,
        "one-way" => cell.state == State::OneWay,
        "wrong-node" => cell.state == State::WrongNode,
        "lossy" => cell.state == State::LosesSome,
        "slow" => cell.state == State::Slow,
        "probe-filtered" => cell.ping_only,
        _ => false,
    };
    let mut peers: Vec<String> =
        cells.iter().filter(fits).filter_map(|cell| names.get(&cell.subnet).cloned()).collect();
    peers.sort();
    peers.dedup();
    peers
}

#[cfg(test)]
mod tests {
    use super::*;
    use node_api::{PEERS, Peer, Probed};

    fn net(number: u8) -> IpNet {
        format!("10.244.{number}.0/24").parse().unwrap()
    }

    fn probed(number: u8) -> Probed {
        Probed {
            peer: Peer {
                node: Some(format!("n{number}")),
                subnets: vec![net(number)],
                addresses: Vec::new(),
            },
            verdicts: Vec::new(),
        }
    }

    fn row(number: u8, own: Option<Own>, cells: &[(u8, State)]) -> Row {
        Row {
            id: None,
            name: None,
            subnet: net(number),
            asked_age_ms: 0,
            answered_age_ms: Some(0),
            own,
            counts: BTreeMap::new(),
            rtt_us: None,
            peers: cells
                .iter()
                .map(|(number, state)| Cell {
                    subnet: net(*number),
                    state: *state,
                    ping_only: false,
                    rtt_us: None,
                    lost: 0,
                    asked_age_ms: None,
                })
                .collect(),
        }
    }

    #[test]
    fn checks_of_rows_become_findings_with_their_peers() {
        let own = |broken, risks, checks: &[&str]| Own {
            ready: true,
            broken,
            degraded: 0,
            risks,
            gravest: checks.first().map(|check| (*check).to_owned()),
            checks: checks.iter().map(|check| (*check).to_owned()).collect(),
        };
        let cells = [(3, State::OverlayCut), (4, State::Well)];
        let peers = Peers {
            schema: PEERS.to_owned(),
            node: "n1".to_owned(),
            probed: true,
            peers: (2..=7).map(probed).collect(),
            rows: vec![
                row(2, Some(own(1, 1, &["overlay-cut", "clock"])), &cells),
                row(3, Some(own(1, 0, &["encap-blocked"])), &[]),
                row(4, Some(Own::default()), &[]),
                row(5, Some(own(1, 0, &["mtu"])), &[]),
                row(6, None, &[]),
                // The node reported this before it went silent.
                Row { answered_age_ms: Some(60_000), ..row(7, Some(Own::default()), &[]) },
            ],
            answering: 6,
            missing: 2,
        };
        let (answered, unanswered) = others(&peers);
        let seen: Vec<(String, String, Severity, Vec<String>)> = answered
            .iter()
            .flat_map(|answer| {
                answer.causes.iter().map(|finding| {
                    (
                        answer.node.clone(),
                        finding.check.clone(),
                        finding.severity,
                        finding.peers.clone(),
                    )
                })
            })
            .collect();
        let one = |node: &str, check: &str, severity, peers: &[&str]| {
            (
                node.to_owned(),
                check.to_owned(),
                severity,
                peers.iter().map(|peer| (*peer).to_owned()).collect(),
            )
        };
        assert_eq!(
            seen,
            [
                one("n2", "overlay-cut", Severity::Broken, &["n3"]),
                one("n2", "clock", Severity::Risk, &[]),
                one("n3", "encap-blocked", Severity::Broken, &[]),
                one("n5", "mtu", Severity::Broken, &[]),
            ]
        );
        assert_eq!(answered.len(), 4);
        let silent: Vec<&str> = unanswered.iter().map(|one| one.node.as_str()).collect();
        assert_eq!(silent, ["n6", "n7"]);
    }
}
