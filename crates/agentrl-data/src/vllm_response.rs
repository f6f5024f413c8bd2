//! Parse the generated tokens in the JSON response of a vLLM server's `/inference/v1/generate`.
//!
//! A token takes about 700 bytes of JSON, because each of its likeliest alternatives is an object. The alternatives
//! become flat columns. The rest of a response is small.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Error, ErrorKind, Result};

/// Candidates at each token of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates {
    /// Number of tokens.
    pub count: usize,
    /// Ids of the candidates at each token, `[count, k]`: the sampled one, then the likeliest others.
    pub ids: Vec<i32>,
    /// Log-probabilities of the candidates.
    pub logprobs: Vec<f32>,
    /// JSON of the other fields that an engine reads, as the server wrote them.
    pub rest: String,
}

#[derive(Deserialize, Serialize)]
struct Response<'a> {
    #[serde(borrow)]
    choices: [Choice<'a>; 1],
    usage: &'a RawValue,
    prompt_token_ids: Option<&'a RawValue>,
}

#[derive(Deserialize, Serialize)]
struct Choice<'a> {
    #[serde(borrow)]
    finish_reason: &'a RawValue,
    token_ids: &'a RawValue,
    weight_versions: Option<&'a RawValue>,
    routed_experts: Option<&'a RawValue>,
    #[serde(skip_serializing)]
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Logprobs {
    content: Option<Vec<Place>>,
}

#[derive(Deserialize)]
struct Place {
    top_logprobs: Vec<Candidate>,
}

#[derive(Deserialize)]
struct Candidate {
    token_id: i32,
    logprob: f32,
}

/// Read a response. Its list `choices[0].logprobs.content` has the candidates at each token:
/// `[{"top_logprobs": [{"token_id": 7, "logprob": -0.5, ...}, ...], ...}, ...]`.
/// If the list is null or absent, there are no candidates.
///
/// # Errors
/// `Schema` if the bytes are not a response with one choice, or tokens have different numbers of candidates.
pub fn candidates(bytes: &[u8]) -> Result<Candidates> {
    let response: Response<'_> = serde_json::from_slice(bytes).map_err(unusable)?;
    let rest = serde_json::to_string(&response).map_err(unusable)?;
    let [choice] = response.choices;
    let places = choice.logprobs.and_then(|logprobs| logprobs.content).unwrap_or_default();
    let width = places.first().map_or(0, |place| place.top_logprobs.len());
    if places.iter().any(|place| place.top_logprobs.len() != width) {
        return Err(unusable("tokens have different numbers of candidates"));
    }
    let each = places.iter().flat_map(|place| &place.top_logprobs);
    let (ids, logprobs) = each.map(|candidate| (candidate.token_id, candidate.logprob)).unzip();
    Ok(Candidates { count: places.len(), ids, logprobs, rest })
}

fn unusable(reason: impl std::fmt::Display) -> Error {
    let message = format!("the response of a vLLM server has no usable log-probabilities of its tokens ({reason})");
    Error::new(ErrorKind::Schema, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The text also has another list with this name, a string that contains its key, and fields that are not read.
    const RESPONSE: &str = r#"{"request_id":"a \"content\": [","content":[{"top_logprobs":[]}],"usage":{"total_tokens":5},
        "choices":[{"index":0,"finish_reason":"stop","token_ids":[7,2],"logprobs":{"text":null,"content":[
        {"token_id":7,"logprob":-0.5,"rank":1,"top_logprobs":[{"token_id":7,"logprob":-0.5,"rank":1},
        {"token_id":9,"logprob":-9999.0,"rank":null}]},
        {"other":{"a":["]",1,{}]},"top_logprobs":[{"token_id":2,"logprob":-1.25,"rank":2},
        {"rank":1,"logprob":0,"token_id":3}]}]},"weight_versions":[{"version": "a+b"}]}]}"#;

    fn with_logprobs(json: &str) -> String {
        format!(r#"{{"choices":[{{"finish_reason":"stop","token_ids":[],"logprobs":{json}}}],"usage":null}}"#)
    }

    #[test]
    fn the_list_becomes_columns_and_the_rest_stays() {
        let found = candidates(RESPONSE.as_bytes()).unwrap();
        assert_eq!((found.count, &found.ids[..]), (2, &[7, 9, 2, 3][..]));
        assert_eq!(found.logprobs, [-0.5, -9999.0, -1.25, 0.0]);
        let rest: serde_json::Value = serde_json::from_str(&found.rest).unwrap();
        let choice = serde_json::json!({
            "finish_reason": "stop", "token_ids": [7, 2], "weight_versions": [{"version": "a+b"}], "routed_experts": null,
        });
        let usage = serde_json::json!({"total_tokens": 5});
        assert_eq!(rest, serde_json::json!({"choices": [choice], "usage": usage, "prompt_token_ids": null}));
        // The number is the one that serde_json reads.
        let whole: serde_json::Value = serde_json::from_str(RESPONSE).unwrap();
        assert_eq!(whole["choices"][0]["logprobs"]["content"][1]["top_logprobs"][0]["logprob"], -1.25);
    }

    #[test]
    fn a_response_without_the_list_has_no_tokens() {
        for json in ["null", "{}", r#"{"content" : null}"#, r#"{"content": [ ]}"#] {
            let found = candidates(with_logprobs(json).as_bytes()).unwrap();
            assert_eq!((found.count, found.ids, found.logprobs), (0, vec![], vec![]), "{json}");
        }
    }

    #[test]
    fn other_responses_are_refused() {
        let fewer = RESPONSE.replace(r#"{"token_id":7,"logprob":-0.5,"rank":1},"#, "");
        let nameless = RESPONSE.replace(r#"{"rank":1,"logprob":0,"#, "{");
        let text = RESPONSE.replace("-1.25", "\"-1.25\"");
        let number = with_logprobs(r#"{"content":[{"top_logprobs":[1]}]}"#);
        let endless = with_logprobs(r#"{"content":"#);
        for text in [&fewer, &nameless, &text, &number, &endless, "", "{}", r#"{"choices":[],"usage":null}"#] {
            assert_eq!(candidates(text.as_bytes()).unwrap_err().kind(), ErrorKind::Schema, "{text}");
        }
        for cut in 0..RESPONSE.len() {
            assert!(candidates(&RESPONSE.as_bytes()[..cut]).is_err(), "{cut}");
        }
    }
}
