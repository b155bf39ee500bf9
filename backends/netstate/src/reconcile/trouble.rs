//! The unfinished work of a pass of the reconciler, as one [`Problem`].

use crate::kernel::OpError;
use std::fmt;
use types::{Coded, Problem};

/// The maximum number of the kernel's refusals that the problem names.
const NAMED: usize = 3;

/// The work that a pass left undone.
pub(super) struct Unfinished<'e> {
    /// Whether the reconciler delays deletions.
    held: bool,
    errors: &'e [OpError],
}

impl<'e> Unfinished<'e> {
    /// Returns the unfinished work, or `None` if the pass left no work undone.
    pub(super) fn of(held: bool, errors: &'e [OpError]) -> Option<Self> {
        (held || !errors.is_empty()).then_some(Self { held, errors })
    }

    fn named(&self) -> impl Iterator<Item = &'e OpError> {
        self.errors.iter().take(NAMED)
    }
}

impl Coded for Unfinished<'_> {
    fn code(&self) -> &'static str {
        if self.errors.is_empty() { "deletions-held" } else { "kernel-not-in-sync" }
    }

    fn parts(&self) -> Vec<Problem> {
        self.named().map(Problem::of).collect()
    }
}

impl fmt::Display for Unfinished<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held =
            self.held.then(|| "flanneld keeps many routes without a lease for a minute".to_owned());
        let more = self.errors.len().saturating_sub(NAMED);
        let more = (more > 0).then(|| format!("and {more} more"));
        let parts: Vec<String> =
            held.into_iter().chain(self.named().map(ToString::to_string)).chain(more).collect();
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Cause, Failure, FailureKind};
    use crate::names::LinkName;
    use crate::object::Key;
    use types::problem::PortPurpose;
    use types::{Detail, Errno};

    fn error(name: &str, cause: Cause) -> OpError {
        let why =
            Failure::Refused { errno: Errno(libc::EOPNOTSUPP), words: "words".to_owned(), cause };
        OpError {
            verb: "add",
            key: Key::Link(LinkName::parse(name).unwrap()),
            kind: FailureKind::Unsupported,
            why,
        }
    }

    #[test]
    fn unfinished_pass_names_the_first_refusals_with_what_others_act_on() {
        let link = LinkName::parse("flannel.1").unwrap();
        let mut errors = vec![
            error("flannel.1", Cause::ModuleMissing { link, module: "vxlan".to_owned() }),
            error("flannel.1", Cause::PortTaken { link, port: 8472, wireguard: false }),
        ];
        assert!(Unfinished::of(false, &[]).is_none());
        let held = Problem::from(Unfinished::of(true, &[]).unwrap());
        assert_eq!((held.code.as_ref(), held.parts.len()), ("deletions-held", 0));
        let problem = Problem::from(Unfinished::of(true, &errors).unwrap());
        let details: Vec<Detail> = problem.details().cloned().collect();
        let taken = Detail::PortTaken { number: 8472, udp: true, purpose: PortPurpose::Tunnel };
        assert_eq!(details, [Detail::ModuleMissing { name: "vxlan".to_owned() }, taken]);
        assert!(
            problem.has("module-missing")
                && problem.has("tunnel-port-taken")
                && problem.has("kernel-not-in-sync")
        );
        errors.extend([
            error("a", Cause::Unknown),
            error("b", Cause::Unknown),
            error("c", Cause::Unknown),
        ]);
        let problem = Problem::from(Unfinished::of(true, &errors).unwrap());
        assert_eq!(problem.parts.len(), NAMED);
    }
}
