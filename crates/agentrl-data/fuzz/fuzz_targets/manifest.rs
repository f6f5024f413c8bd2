//! Fuzz target: any text as a manifest, without and with a valid checksum, so that the code after the checksum runs
//! too.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &str| {
    _ = agentrl_data::store::read_manifest(body.as_bytes());
    _ = agentrl_data::store::read_manifest_body(body);
});
