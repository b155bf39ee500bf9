//! A network configuration: the parser refuses it, or its subnet pools and candidate subnets are consistent.
//! Creating a backend for it does not panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use subnet_lease::{NetworkConfig, alloc};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    if let Ok(config) = NetworkConfig::parse(&text) {
        for pool in config.pools.v4().into_iter().chain(config.pools.v6()) {
            assert_eq!(pool.subnet(0).and_then(|first| pool.index(&first)), Some(0));
        }
        for subnets in alloc::candidates(&config, &[], "node").take(3) {
            assert!(config.fits(&subnets));
        }
        let _ = backends::create_backend(&backends::Setup::of(config));
    }
});
