//! The kernel module br_netfilter. Whenever it is missing, the daemon tries once to load it.

use doctor::look::has_br_netfilter;
use traffic_rules::programs::run_program;

/// Whether the daemon has tried to load the module.
#[derive(Default)]
pub(super) struct Module {
    tried: bool,
    /// Why the daemon could not load it.
    pub complaint: Option<String>,
}

impl Module {
    pub(super) async fn load(&mut self) {
        if has_br_netfilter() {
            *self = Self::default();
        } else if !self.tried {
            self.tried = true;
            match run_program("modprobe", &["br_netfilter"], None).await {
                Ok(_) => tracing::info!(name = "br_netfilter", "loaded a kernel module"),
                Err(why) => self.complaint = Some(why.to_string()),
            }
        }
    }
}
