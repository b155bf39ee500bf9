//! A model of the parts of etcd that the protocol uses: keys with revisions, leases, compare-and-swap and history.

use std::collections::BTreeMap;
use std::time::Duration;
use subnet_lease::protocol::registry::{
    Answer, Compare, Entry, Listing, Notice, Request, TTL, Write,
};
use types::Problem;

pub(crate) fn no_answer() -> Problem {
    Problem::new("no-answer", "no answer")
}

#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub at: Duration,
    pub revision: i64,
    pub key: String,
    pub notice: Notice,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub revision: i64,
    pub keys: BTreeMap<String, Entry>,
    /// With the time of each lease's last renewal.
    pub leases: BTreeMap<i64, Duration>,
    pub next_lease: i64,
    pub events: Vec<Event>,
    pub history: u32,
    pub writes: u64,
    pub ignores_compares: bool,
}

impl Store {
    pub(crate) fn carry_out(
        &mut self,
        request: &Request,
        now: Duration,
    ) -> Result<Answer, Problem> {
        self.expire(now);
        Ok(match request {
            Request::List => Answer::Listing(Listing {
                revision: self.revision,
                entries: self.keys.values().cloned().collect(),
            }),
            Request::Grant => {
                self.next_lease += 1;
                self.leases.insert(self.next_lease, now);
                Answer::Granted(self.next_lease)
            }
            Request::LastSeen { lease, .. } => Answer::LastSeen(
                self.leases.get(lease).map(|refreshed| now.saturating_sub(*refreshed)),
            ),
            Request::KeepAlive { lease, .. } => Answer::Alive(
                self.leases.get_mut(lease).map(|refreshed| *refreshed = now).is_some(),
            ),
            Request::Inherit { lease } => Answer::Alive(self.leases.contains_key(lease)),
            Request::Revoke { lease } => {
                if self.keys.values().all(|entry| entry.lease != *lease) {
                    self.leases.remove(lease);
                }
                Answer::Revoked
            }
            Request::Txn { compare, write, key } => {
                let holds = self.ignores_compares && !write.is_empty()
                    || compare.iter().all(|compare| self.holds(compare));
                if holds {
                    for write in write {
                        self.write(write, now)?;
                    }
                }
                Answer::Txn {
                    done: holds,
                    revision: self.revision,
                    present: if holds { None } else { self.keys.get(key).cloned() },
                }
            }
        })
    }

    fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::Unchanged { key, modified } => {
                self.keys.get(key).is_some_and(|entry| entry.modified == *modified)
            }
            Compare::Holds { key, value } => {
                self.keys.get(key).is_some_and(|entry| *entry.value == *value.as_bytes())
            }
            Compare::HangsOn { key, lease } => {
                self.keys.get(key).is_some_and(|entry| entry.lease == *lease)
            }
            Compare::NoneUnder(prefix) => !self.keys.keys().any(|key| key.starts_with(prefix)),
            Compare::NoneElseAt { .. } => true,
        }
    }

    pub(crate) fn write(&mut self, write: &Write, now: Duration) -> Result<(), Problem> {
        match write {
            Write::Put { key, value, lease } => {
                if *lease != 0 && !self.leases.contains_key(lease) {
                    return Err(no_answer());
                }
                self.revision += 1;
                self.writes += 1;
                let created = self.keys.get(key).map_or(self.revision, |entry| entry.created);
                let entry = Entry {
                    key: key.clone(),
                    value: value.as_bytes().into(),
                    created,
                    modified: self.revision,
                    lease: *lease,
                };
                self.keys.insert(key.clone(), entry.clone());
                self.events.push(Event {
                    at: now,
                    revision: self.revision,
                    key: key.clone(),
                    notice: Notice::Written(entry),
                });
            }
            Write::Delete { key } => self.delete(key, now),
        }
        Ok(())
    }

    pub(crate) fn delete(&mut self, key: &str, now: Duration) {
        if self.keys.remove(key).is_some() {
            self.revision += 1;
            self.writes += 1;
            self.events.push(Event {
                at: now,
                revision: self.revision,
                key: key.to_owned(),
                notice: Notice::Deleted(self.revision),
            });
        }
    }

    pub(crate) fn drop_lease(&mut self, lease: i64, now: Duration) {
        if self.leases.remove(&lease).is_some() {
            let keys: Vec<String> = self
                .keys
                .values()
                .filter(|entry| entry.lease == lease)
                .map(|entry| entry.key.clone())
                .collect();
            for key in keys {
                self.delete(&key, now);
            }
        }
    }

    fn expire(&mut self, now: Duration) {
        let dead: Vec<i64> = self
            .leases
            .iter()
            .filter(|(_, refreshed)| now.saturating_sub(**refreshed) > TTL)
            .map(|(lease, _)| *lease)
            .collect();
        for lease in dead {
            self.drop_lease(lease, now);
        }
    }

    /// Goes back to an older state: the revision decreases, and the times to live of the leases start again.
    pub(crate) fn restore(&mut self, old: &Store, now: Duration) {
        let history = self.history + 1;
        let (writes, next_lease) = (self.writes, self.next_lease);
        let ignores_compares = self.ignores_compares;
        *self = old.clone();
        self.leases.values_mut().for_each(|refreshed| *refreshed = now);
        self.events.clear();
        self.history = history;
        self.writes = writes;
        self.next_lease = next_lease;
        self.ignores_compares = ignores_compares;
    }
}
