//! Decides which etcd cluster flanneld uses, only from the cluster ids that the endpoints report.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// The daemon may use the endpoint.
    Right,
    /// Every endpoint reports this new cluster, because an operator rebuilt etcd. The daemon may use the endpoint. With the former cluster id.
    Moved(u64),
    /// The endpoint belongs to another cluster, and the daemon must not use it. With the id of the cluster in use.
    Foreign(u64),
}

/// The cluster in use, and the endpoints that have reported another cluster since it last replied.
///
/// The first reply selects the cluster. The client moves to another cluster only after *every* endpoint has reported it. A reply from the cluster in
/// use discards the earlier reports of others. An endpoint that has not reported the new cluster prevents the move, however often the other endpoints
/// reply.
#[derive(Clone, Debug)]
pub(crate) struct Recognition {
    known: Option<u64>,
    votes: Vec<Option<u64>>,
}

impl Recognition {
    pub(crate) fn new(endpoints: usize) -> Self {
        Self { known: None, votes: vec![None; endpoints] }
    }

    pub(crate) fn answer(&mut self, endpoint: usize, cluster: u64) -> Judgement {
        let known = *self.known.get_or_insert(cluster);
        if known == cluster {
            self.votes.fill(None);
            return Judgement::Right;
        }
        if let Some(vote) = self.votes.get_mut(endpoint) {
            *vote = Some(cluster);
        }
        if self.votes.iter().all(|vote| *vote == Some(cluster)) {
            self.known = Some(cluster);
            self.votes.fill(None);
            return Judgement::Moved(known);
        }
        Judgement::Foreign(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_endpoint_that_answers_often_is_one_vote() {
        let mut seen = Recognition::new(2);
        assert_eq!(seen.answer(0, 1), Judgement::Right);
        for _ in 0..100 {
            assert_eq!(seen.answer(1, 2), Judgement::Foreign(1));
        }
        assert_eq!(seen.answer(0, 1), Judgement::Right);
        assert_eq!(
            seen.answer(0, 2),
            Judgement::Foreign(1),
            "a reply from the cluster in use discards the earlier reports"
        );
        assert_eq!(
            seen.answer(1, 3),
            Judgement::Foreign(1),
            "the endpoints report different clusters"
        );
        assert_eq!(seen.answer(1, 2), Judgement::Moved(1));
        assert_eq!(seen.answer(0, 2), Judgement::Right);
    }

    #[test]
    fn sole_endpoint_that_was_set_up_anew_is_followed() {
        let mut seen = Recognition::new(1);
        assert_eq!(
            (seen.answer(0, 1), seen.answer(0, 2), seen.answer(0, 2)),
            (Judgement::Right, Judgement::Moved(1), Judgement::Right)
        );
    }

    proptest! {
        /// The client moves to another cluster exactly when every endpoint's last report names it. Reports before the last reply from the cluster in
        /// use do not count.
        #[test]
        fn move_to_another_cluster_needs_every_endpoint(endpoints in 1usize..5, answers in prop::collection::vec((0usize..5, 1u64..4), 1..60)) {
            let mut seen = Recognition::new(endpoints);
            let (mut right, mut since) = (None, Vec::new());
            for (endpoint, cluster) in answers {
                let endpoint = endpoint % endpoints;
                let judgement = seen.answer(endpoint, cluster);
                let known = *right.get_or_insert(cluster);
                if cluster == known {
                    since.clear();
                    prop_assert_eq!(judgement, Judgement::Right);
                    continue;
                }
                since.push((endpoint, cluster));
                let last = |asked: usize| since.iter().rev().find(|(endpoint, _)| *endpoint == asked).map(|(_, cluster)| *cluster);
                if (0..endpoints).all(|endpoint| last(endpoint) == Some(cluster)) {
                    prop_assert_eq!(judgement, Judgement::Moved(known));
                    right = Some(cluster);
                    since.clear();
                } else {
                    prop_assert_eq!(judgement, Judgement::Foreign(known));
                }
            }
        }
    }
}
