//! The program of the CNI plugin `flannel`.

use std::process::ExitCode;

fn main() -> ExitCode {
    flannel_cni::program()
}
