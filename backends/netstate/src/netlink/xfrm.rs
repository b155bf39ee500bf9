//! Policies of IPsec over netlink (linux/xfrm.h). The layouts are those of 64-bit kernels; programs of 32 bits do not run here.

use super::socket::{Answer, Notices, Requests};
use super::uapi::*;
use super::wire::{self, Message};
use crate::failure::{Cause, Failure, KernelError, Listed, Request};
use crate::xfrm::{Action, Direction, Policy, Selector};
use ipnet::IpNet;
use netlink_sys::protocols::NETLINK_XFRM;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use types::Errno;

/// A connection to the kernel's policies in the network namespace in which it was opened.
pub struct Policies {
    requests: Requests,
    notices: Notices,
}

impl Policies {
    /// Opens the sockets in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel has no xfrm.
    pub fn open() -> Result<Self, KernelError> {
        let lacking = |error: KernelError| KernelError {
            what: Request::OpenPolicies,
            why: match error.why {
                Failure::Refused { errno, words, .. } => Failure::Refused {
                    errno,
                    words,
                    cause: Cause::NoIpsec,
                },
                other => other,
            },
        };
        Ok(Self {
            requests: Requests::of(NETLINK_XFRM).map_err(lacking)?,
            notices: Notices::of(NETLINK_XFRM, 1 << (XFRMNLGRP_POLICY - 1)).map_err(lacking)?,
        })
    }

    /// All policies that select by networks and direction alone. Others are somebody else's.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn list(&mut self) -> Result<BTreeMap<Selector, Policy>, KernelError> {
        let request = || Message::new(XFRM_MSG_GETPOLICY, 0, &[0; XFRM_USERPOLICY_ID]);
        let dump = self.requests.dump(
            Listed::Policies,
            request,
            BTreeMap::new,
            |policies, message| {
                if message.kind == XFRM_MSG_NEWPOLICY {
                    policies.extend(decode(message.body));
                }
            },
        );
        dump.await
    }

    /// Adds a policy, or replaces the one with this selector.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn set(&mut self, selector: &Selector, policy: &Policy) -> Result<(), KernelError> {
        self.one(encode(selector, policy), selector, "set").await
    }

    /// Deletes a policy. One that is gone is no error.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn delete(&mut self, selector: &Selector) -> Result<(), KernelError> {
        let mut body = selected(selector);
        body.extend(0u32.to_ne_bytes());
        body.push(number(selector.direction));
        body.resize(XFRM_USERPOLICY_ID, 0);
        self.one(
            Message::new(XFRM_MSG_DELPOLICY, 0, &body),
            selector,
            "delete",
        )
        .await
    }

    /// Returns when a policy was added, changed or deleted, or when all were flushed.
    ///
    /// # Cancel safety
    /// As [`Notices::until`].
    pub async fn changed(&mut self) {
        let kinds = [
            XFRM_MSG_NEWPOLICY,
            XFRM_MSG_DELPOLICY,
            XFRM_MSG_UPDPOLICY,
            XFRM_MSG_FLUSHPOLICY,
        ];
        self.notices
            .until(|message| kinds.contains(&message.kind))
            .await;
    }

    async fn one(
        &mut self,
        message: Message,
        selector: &Selector,
        verb: &'static str,
    ) -> Result<(), KernelError> {
        let failed = |why| KernelError {
            what: Request::Policy {
                verb,
                selector: Box::new(*selector),
            },
            why,
        };
        let refused = |code, words, cause| {
            failed(Failure::Refused {
                errno: Errno(code),
                words,
                cause,
            })
        };
        match self.requests.batch(vec![message], 1, |_, _| {}).await.pop() {
            Some(Answer::Done) => Ok(()),
            Some(Answer::Refused(libc::ENOENT, _)) if verb == "delete" => Ok(()),
            Some(Answer::Refused(libc::EPERM, words)) => {
                Err(refused(libc::EPERM, words, Cause::Forbidden))
            }
            Some(Answer::Refused(code, words)) => Err(refused(code, words, Cause::Unknown)),
            Some(Answer::Lost) | None => Err(failed(Failure::Silent)),
        }
    }
}

/// The number of a direction.
fn number(direction: Direction) -> u8 {
    match direction {
        Direction::In => XFRM_POLICY_IN,
        Direction::Out => XFRM_POLICY_OUT,
        Direction::Forward => XFRM_POLICY_FWD,
    }
}

fn family(ip: IpAddr) -> u16 {
    let family = if ip.is_ipv6() {
        libc::AF_INET6
    } else {
        libc::AF_INET
    };
    u16::try_from(family).unwrap_or_default()
}

/// xfrm_address_t
fn address(ip: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match ip {
        IpAddr::V4(v4) => bytes
            .iter_mut()
            .zip(v4.octets())
            .for_each(|(to, from)| *to = from),
        IpAddr::V6(v6) => bytes = v6.octets(),
    }
    bytes
}

fn address_at(bytes: &[u8], at: usize, family: u16) -> Option<IpAddr> {
    let bytes: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
    let [a, b, c, d, ..] = bytes;
    match i32::from(family) {
        libc::AF_INET => Some(Ipv4Addr::new(a, b, c, d).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(bytes).into()),
        _ => None,
    }
}

/// struct xfrm_selector: only addresses select.
fn selected(selector: &Selector) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(XFRM_USERPOLICY_INFO);
    bytes.extend(address(selector.to.network()));
    bytes.extend(address(selector.from.network()));
    // Ports and their masks.
    bytes.extend([0; 8]);
    bytes.extend(family(selector.to.network()).to_ne_bytes());
    bytes.extend([selector.to.prefix_len(), selector.from.prefix_len()]);
    // Protocol, interface, user.
    bytes.resize(XFRM_SELECTOR, 0);
    bytes
}

/// struct xfrm_userpolicy_info, and the template of a tunnel.
fn encode(selector: &Selector, policy: &Policy) -> Message {
    let mut body = selected(selector);
    // The limits of bytes and packets come first in struct xfrm_lifetime_cfg; times of 0 are none.
    body.extend([0xff; 4 * 8]);
    body.resize(LIFETIMES_END, 0);
    body.extend(policy.priority.to_ne_bytes());
    body.extend(0u32.to_ne_bytes());
    let action = if policy.action == Action::Block {
        XFRM_POLICY_BLOCK
    } else {
        XFRM_POLICY_ALLOW
    };
    body.extend([number(selector.direction), action]);
    body.resize(XFRM_USERPOLICY_INFO, 0);
    let message = Message::new(XFRM_MSG_UPDPOLICY, 0, &body);
    let Action::Tunnel { from, to, reqid } = policy.action else {
        return message;
    };
    // struct xfrm_user_tmpl
    let mut template = Vec::with_capacity(XFRM_USER_TMPL);
    template.extend(address(to));
    template.extend([0; 4]);
    template.extend([IPPROTO_ESP, 0, 0, 0]);
    template.extend(family(from).to_ne_bytes());
    template.extend([0; 2]);
    template.extend(address(from));
    template.extend(reqid.to_ne_bytes());
    template.extend([XFRM_MODE_TUNNEL, 0, 0, 0]);
    // Any algorithm.
    template.resize(XFRM_USER_TMPL, 0xff);
    message.attr(XFRMA_TMPL, &template)
}

/// A policy of a dump, if networks and direction are all that it selects by.
fn decode(body: &[u8]) -> Option<(Selector, Policy)> {
    let family = wire::u16_at(body, 40)?;
    let net = |at, bits| IpNet::new(address_at(body, at, family)?, wire::u8_at(body, bits)?).ok();
    let (to, from) = (net(0, 42)?, net(16, 43)?);
    // Ports, protocol, interface, user.
    if body
        .get(32..40)?
        .iter()
        .chain(body.get(44..XFRM_SELECTOR)?)
        .any(|byte| *byte != 0)
    {
        return None;
    }
    if wire::attrs(body, XFRM_USERPOLICY_INFO)
        .any(|(kind, _)| matches!(kind, XFRMA_MARK | XFRMA_IF_ID))
    {
        return None;
    }
    let direction = match wire::u8_at(body, LIFETIMES_END + 8)? {
        XFRM_POLICY_IN => Direction::In,
        XFRM_POLICY_OUT => Direction::Out,
        XFRM_POLICY_FWD => Direction::Forward,
        _ => return None,
    };
    let mut templates =
        wire::attrs(body, XFRM_USERPOLICY_INFO).filter(|(kind, _)| *kind == XFRMA_TMPL);
    let action = match (wire::u8_at(body, LIFETIMES_END + 9)?, templates.next()) {
        (XFRM_POLICY_BLOCK, _) => Action::Block,
        (_, None) => Action::Pass,
        (_, Some((_, template))) => tunnel(template)?,
    };
    Some((
        Selector {
            direction,
            from,
            to,
        },
        Policy {
            action,
            priority: wire::u32_at(body, LIFETIMES_END)?,
        },
    ))
}

/// A template of one tunnel of ESP that must be used; others are nobody's that we know.
fn tunnel(template: &[u8]) -> Option<Action> {
    if template.len() != XFRM_USER_TMPL
        || wire::u8_at(template, 20)? != IPPROTO_ESP
        || wire::u8_at(template, 48)? != XFRM_MODE_TUNNEL
        || wire::u8_at(template, 50)? != 0
    {
        return None;
    }
    let family = wire::u16_at(template, 24)?;
    Some(Action::Tunnel {
        from: address_at(template, 28, family)?,
        to: address_at(template, 0, family)?,
        reqid: wire::u32_at(template, 44)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn selector() -> impl Strategy<Value = Selector> {
        let v4 = (any::<[u8; 4]>(), 0..=32u8)
            .prop_map(|(ip, bits)| IpNet::new(IpAddr::from(ip), bits).unwrap().trunc());
        let v6 = (any::<[u8; 16]>(), 0..=128u8)
            .prop_map(|(ip, bits)| IpNet::new(IpAddr::from(ip), bits).unwrap().trunc());
        let nets = prop_oneof![(v4.clone(), v4).boxed(), (v6.clone(), v6).boxed()];
        let direction = prop_oneof![
            Just(Direction::In),
            Just(Direction::Out),
            Just(Direction::Forward)
        ];
        (direction, nets).prop_map(|(direction, (from, to))| Selector {
            direction,
            from,
            to,
        })
    }

    fn policy() -> impl Strategy<Value = Policy> {
        let v4 = (any::<[u8; 4]>(), any::<[u8; 4]>())
            .prop_map(|(from, to)| (IpAddr::from(from), IpAddr::from(to)));
        let v6 = (any::<[u8; 16]>(), any::<[u8; 16]>())
            .prop_map(|(from, to)| (IpAddr::from(from), IpAddr::from(to)));
        let tunnel = (prop_oneof![v4, v6], any::<u32>())
            .prop_map(|((from, to), reqid)| Action::Tunnel { from, to, reqid });
        (
            prop_oneof![tunnel, Just(Action::Block), Just(Action::Pass)],
            any::<u32>(),
        )
            .prop_map(|(action, priority)| Policy { action, priority })
    }

    proptest! {
        #[test]
        fn policies_come_back(selector in selector(), policy in policy()) {
            let message = encode(&selector, &policy).finish(1);
            prop_assert_eq!(decode(message.get(wire::HEADER..).unwrap()), Some((selector, policy)));
        }

        #[test]
        fn what_is_cut_or_damaged_is_no_policy(selector in selector(), policy in policy(), length in 0..260usize, at in 0..260usize, byte: u8) {
            let mut message = encode(&selector, &policy).finish(1);
            if let Some(place) = message.get_mut(at) {
                *place = byte;
            }
            // Nothing to expect but that it returns.
            let _ = decode(message.get(wire::HEADER..wire::HEADER + length).unwrap_or_default());
        }
    }
}
