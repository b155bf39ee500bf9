//! Extracts ports in use and missing kernel modules from the problems of the daemon.

use crate::facts::host::{Module, Port};
use types::{Detail, Problem};

pub fn missing_modules(problem: &Problem) -> Vec<Module> {
    let mut found: Vec<Module> = Vec::new();
    for part in problem.all() {
        if let Detail::ModuleMissing { name } = &part.detail
            && found.iter().all(|module| module.name != *name)
        {
            found.push(Module { name: name.clone(), why: part.to_string() });
        }
    }
    found
}

/// Each port has the process that currently uses it.
pub fn taken_ports(problem: &Problem) -> Vec<Port> {
    let mut found: Vec<Port> = Vec::new();
    for detail in problem.details() {
        let Detail::PortTaken { number, udp, purpose } = *detail else {
            continue;
        };
        if found.iter().all(|port| (port.number, port.udp) != (number, udp)) {
            found.push(Port { number, udp, purpose, owner: super::ports::owner(number, udp) });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::problem::PortPurpose;

    fn problem(detail: Detail, parts: Vec<Problem>) -> Problem {
        Problem { code: "x".into(), text: "why".to_owned(), detail, parts }
    }

    #[test]
    fn parts_of_a_problem_name_each_module_and_port_once() {
        let module =
            |name: &str| problem(Detail::ModuleMissing { name: name.to_owned() }, Vec::new());
        let port = |number| {
            problem(
                Detail::PortTaken { number, udp: true, purpose: PortPurpose::Tunnel },
                Vec::new(),
            )
        };
        let all = problem(
            Detail::None,
            vec![
                module("vxlan"),
                problem(Detail::None, vec![port(1), module("vxlan")]),
                module("ipip"),
                port(1),
            ],
        );
        assert_eq!(
            missing_modules(&all).iter().map(|module| module.name.as_str()).collect::<Vec<_>>(),
            ["vxlan", "ipip"]
        );
        assert_eq!(
            taken_ports(&all).iter().map(|port| (port.number, port.udp)).collect::<Vec<_>>(),
            [(1, true)]
        );
    }
}
