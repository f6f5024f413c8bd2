//! A manifest: any text, with its checksum made right so that what lies behind it is reached.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &str| {
    _ = agentrl_data::store::read_manifest(body.as_bytes());
    _ = agentrl_data::store::read_manifest_body(body);
});
