//! The kernel module br_netfilter. Loading it is tried once each time it is missing.

use doctor::look::has_br_netfilter;
use std::path::Path;
use traffic_rules::programs::run;

/// The module.
#[derive(Default)]
pub(super) struct Module {
    tried: bool,
    /// Why it could not be loaded.
    pub complaint: Option<String>,
}

impl Module {
    pub(super) async fn load(&mut self) {
        if has_br_netfilter() {
            *self = Self::default();
        } else if !self.tried {
            self.tried = true;
            match run(Path::new("modprobe"), &["br_netfilter"], None).await {
                Ok(_) => tracing::info!("loaded the kernel module br_netfilter"),
                Err(why) => self.complaint = Some(why.to_string()),
            }
        }
    }
}
