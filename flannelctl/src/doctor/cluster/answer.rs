//! Findings of the nodes of a cluster.

use doctor::Finding;
use node_api::{Source, Unanswered};

/// Unexplained findings of one node.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub node: String,
    pub causes: Vec<Finding>,
}

/// Findings of all nodes, and the nodes that did not respond.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    pub source: Source,
    pub answered: Vec<Answer>,
    pub unanswered: Vec<Unanswered>,
}
