//! Groups the findings of all nodes by cause, without side effects.

use std::collections::{BTreeMap, BTreeSet};

use doctor::finding::{HERE, ON_THE_NODE};
use doctor::{Finding, Severity};
use jiff::Timestamp;
use node_api::{CLUSTER, Cluster, Consequence, Shared, Unanswered};
use types::printable;

use super::answer::{Answer, Answers};

/// Groups findings by two rules. A finding about peers is a consequence if each of them has a `broken`
/// finding about itself. Remaining ones with equal checks and peers become one, which lists all nodes that
/// reported it.
pub(super) fn fold(answers: Answers, at: Timestamp) -> Cluster {
    let Answers { source, mut answered, mut unanswered } = answers;
    clean(&mut answered, &mut unanswered);
    answered.sort_by(|one, other| one.node.cmp(&other.node));
    unanswered.sort_by(|one, other| one.node.cmp(&other.node));
    let culprits: BTreeMap<String, String> = answered.iter().filter_map(culprit).collect();
    let order: BTreeMap<&str, usize> =
        doctor::table::checks().map(|check| check.id).zip(0..).collect();
    let mut shared: BTreeMap<Key, Shared> = BTreeMap::new();
    let mut consequences: Vec<(String, String, Consequence)> = Vec::new();
    let own = answered.iter().find(|answer| answer.is_own);
    let own = own.map(|answer| answer.node.clone());
    for Answer { node, is_own, causes } in &answered {
        let mut times: BTreeMap<(&str, &[String]), usize> = BTreeMap::new();
        for finding in causes {
            let guilty: BTreeSet<&String> = finding.peers.iter().collect();
            let explained = guilty.iter().all(|peer| *peer != node && culprits.contains_key(*peer));
            if let Some(first) = guilty.first().filter(|_| explained) {
                let check = culprits.get(*first).cloned().unwrap_or_default();
                let consequence = Consequence {
                    node: node.clone(),
                    check: finding.check.clone(),
                    what: finding.what.clone(),
                };
                consequences.push(((*first).clone(), check, consequence));
                continue;
            }
            // A node may have several findings of one check, such as one for each route. The number distinguishes these findings.
            let nth = times
                .entry((&finding.check, &finding.peers))
                .and_modify(|times| *times += 1)
                .or_default();
            let key = Key {
                nth: *nth,
                severity: finding.severity,
                order: order.get(finding.check.as_str()).copied().unwrap_or(usize::MAX),
                check: finding.check.clone(),
                peers: finding.peers.clone(),
            };
            let shared = shared.entry(key).or_insert_with(|| Shared {
                nodes: Vec::new(),
                finding: finding.clone(),
                explains: Vec::new(),
            });
            shared.nodes.push(node.clone());
            // Only this node's own doctor says more than the id of the check.
            if *is_own {
                shared.finding = finding.clone();
            }
        }
    }
    let mut findings: Vec<Shared> = shared.into_values().collect();
    attach(&mut findings, consequences);
    for shared in &mut findings {
        shared.finding.remedy.on = place(shared, own.as_ref());
    }
    Cluster {
        schema: CLUSTER.to_owned(),
        at,
        source,
        answered: answered.into_iter().map(|answer| answer.node).collect(),
        unanswered,
        findings,
    }
}

/// Adds each consequence to the finding of the node and check that explain it.
fn attach(findings: &mut [Shared], consequences: Vec<(String, String, Consequence)>) {
    for (culprit, check, consequence) in consequences {
        let cause = findings
            .iter_mut()
            .find(|one| one.finding.check == check && one.nodes.contains(&culprit));
        if let Some(cause) = cause {
            cause.explains.push(consequence);
        }
    }
}

/// Where to run the commands of a finding.
fn place(shared: &Shared, own: Option<&String>) -> String {
    let own = own.filter(|own| shared.nodes.contains(own));
    let place = match (shared.finding.remedy.on.as_str(), own, &shared.nodes[..]) {
        (HERE, Some(own), _) => own.clone(),
        (ON_THE_NODE, Some(own), _) => format!("{own} itself, not in flannel's pod"),
        (_, None, [node]) => return node.clone(),
        (_, None, _) => return "each of these nodes".to_owned(),
        (elsewhere, Some(_), _) => return elsewhere.to_owned(),
    };
    match shared.nodes.len() {
        0 | 1 => place,
        _ => format!("{place}; the doctors of the other nodes print their own commands"),
    }
}

/// Escapes control characters, because other hosts send these texts.
fn clean(answered: &mut [Answer], unanswered: &mut [Unanswered]) {
    for answer in answered {
        answer.node = printable::value(&answer.node).into_owned();
        answer.causes.iter_mut().for_each(Finding::clean);
    }
    for one in unanswered {
        one.node = printable::value(&one.node).into_owned();
        one.why = printable::line(&one.why).into_owned();
    }
}

/// Identifies a finding and its position in the output.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    severity: Severity,
    /// The check's position in the doctor's table, which lists causes before consequences.
    order: usize,
    check: String,
    peers: Vec<String>,
    /// How many findings with equal check and peers precede it in the node's report.
    nth: usize,
}

/// A node and the check of its first `broken` finding about itself.
fn culprit(answer: &Answer) -> Option<(String, String)> {
    let own = |finding: &&Finding| finding.severity == Severity::Broken && is_about_itself(finding);
    let first = answer.causes.iter().find(own)?;
    Some((answer.node.clone(), first.check.clone()))
}

fn is_about_itself(finding: &Finding) -> bool {
    finding.peers.is_empty() && !doctor::is_about_peers(&finding.check)
}

#[cfg(test)]
mod tests {
    use super::*;
    use node_api::Source;

    fn finding(check: &str, peers: &[&str]) -> Finding {
        let severity = match check {
            "clock" => Severity::Risk,
            _ => Severity::Broken,
        };
        let mut finding = Finding::new(check, severity, "", format!("{check} here"), "why");
        finding.peers = peers.iter().map(|peer| (*peer).to_owned()).collect();
        finding
    }

    /// A node and its findings, each with the peers that it concerns.
    type Node<'a> = (&'a str, &'a [(&'a str, &'a [&'a str])]);

    fn answers(of: &[Node<'_>]) -> Cluster {
        let answered = of
            .iter()
            .map(|(node, causes)| Answer {
                node: (*node).to_owned(),
                is_own: *node == "a",
                causes: causes.iter().map(|(check, peers)| finding(check, peers)).collect(),
            })
            .collect();
        let answers = Answers {
            source: Source::Pods,
            answered,
            unanswered: vec![Unanswered { node: "z".to_owned(), why: "off".to_owned() }],
        };
        fold(answers, Timestamp::UNIX_EPOCH)
    }

    /// Each finding with its nodes, and with the explained findings and their nodes.
    fn shown(cluster: &Cluster) -> Vec<String> {
        let line = |shared: &Shared| {
            let explains: Vec<String> = shared
                .explains
                .iter()
                .map(|one| format!("{} on {}", one.check, one.node))
                .collect();
            format!(
                "{} on {}: {}",
                shared.finding.check,
                shared.nodes.join(" "),
                explains.join(", ")
            )
        };
        cluster.findings.iter().map(line).collect()
    }

    #[test]
    fn what_others_find_about_a_faulty_node_is_its_consequence() {
        let cluster = answers(&[
            ("c", &[("one-way", &["b"])]),
            ("b", &[("encap-blocked", &[]), ("clock", &[])]),
            ("a", &[("overlay-cut", &["b"]), ("clock", &[])]),
        ]);
        assert_eq!(
            shown(&cluster),
            ["encap-blocked on b: overlay-cut on a, one-way on c", "clock on a b: "]
        );
        assert_eq!(cluster.answered, ["a", "b", "c"]);
        assert_eq!(cluster.unanswered[0].node, "z");
    }

    #[test]
    fn fault_of_a_node_that_does_not_answer_is_one_finding() {
        let cluster = answers(&[
            ("a", &[("peer-cut", &["z"])]),
            ("b", &[("peer-cut", &["z"]), ("one-way", &["a", "z"])]),
            ("c", &[("clock", &[])]),
        ]);
        assert_eq!(shown(&cluster), ["peer-cut on a b: ", "one-way on b: ", "clock on c: "]);
    }

    #[test]
    fn faults_of_several_peers_are_explained_when_each_is_faulty() {
        let cluster = answers(&[
            ("a", &[("overlay-cut", &["b", "c"])]),
            ("b", &[("ip-forward", &[])]),
            ("c", &[("encap-blocked", &[]), ("overlay-cut", &["a"])]),
            ("d", &[("overlay-cut", &["a", "b"])]),
        ]);
        assert_eq!(
            shown(&cluster),
            [
                "ip-forward on b: overlay-cut on a",
                "encap-blocked on c: ",
                "overlay-cut on c: ",
                "overlay-cut on d: "
            ]
        );
    }

    #[test]
    fn several_findings_of_one_check_on_a_node_are_all_there() {
        let cluster = answers(&[
            ("a", &[("foreign-route", &[]), ("foreign-route", &[])]),
            ("b", &[("foreign-route", &[])]),
        ]);
        assert_eq!(shown(&cluster), ["foreign-route on a b: ", "foreign-route on a: "]);
    }

    #[test]
    fn commands_are_run_on_the_node_that_says_so() {
        let cluster = answers(&[
            ("a", &[("mtu", &[]), ("clock", &[])]),
            ("b", &[("clock", &[]), ("ip-forward", &[])]),
            ("c", &[("clock", &[]), ("rp-filter", &[])]),
            ("d", &[("rp-filter", &[])]),
        ]);
        let on = |check: &str| {
            let shared = cluster.findings.iter().find(|one| one.finding.check == check);
            shared.map_or("", |one| one.finding.remedy.on.as_str())
        };
        assert_eq!(on("mtu"), "a");
        assert!(on("clock").starts_with("a; the doctors of the other nodes"));
        assert_eq!((on("ip-forward"), on("rp-filter")), ("b", "each of these nodes"));
    }

    #[test]
    fn shared_causes_are_one_finding() {
        let nodes: Vec<String> = (0..100).map(|number| format!("n{number:02}")).collect();
        let causes: &[(&str, &[&str])] = &[("store-unreachable", &[])];
        let all: Vec<Node<'_>> = nodes.iter().map(|node| (node.as_str(), causes)).collect();
        let cluster = answers(&all);
        assert_eq!(cluster.findings.len(), 1);
        assert_eq!(cluster.findings[0].nodes, nodes);
        assert!(answers(&[]).findings.is_empty());
    }
}
