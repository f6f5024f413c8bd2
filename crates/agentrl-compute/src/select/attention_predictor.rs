//! Predict the success rates of tasks that were not tried yet.

use crate::argument_checks::all_finite;
use crate::{Error, Result, thread_pool};

/// Average the labels of reference tasks, weighted by the attention of each query:
/// `sum_j softmax_j(q·r_j / scale) label_j`.
///
/// `queries` and `references` are row-major matrices with `width` columns.
///
/// ```
/// use agentrl_compute::select::attended;
///
/// // One query, two references: scores 1 and 0, so the weights are e / (e + 1) and 1 / (e + 1).
/// let found = attended(&[1.0, 0.0], &[1.0, 0.0, 0.0, 1.0], &[1.0, 0.0], 2, 1.0)?;
/// assert!((found[0] - 0.731_058_6).abs() < 1e-7);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if there is no reference, a length is not a multiple of `width`, a number is not finite or `scale` is
/// not above 0.
pub fn attended(queries: &[f64], references: &[f64], labels: &[f64], width: usize, scale: f64) -> Result<Vec<f64>> {
    if !(scale.is_finite() && scale > 0.0) {
        return Err(Error::invalid(format!("scale is {scale}; give a finite number above 0")));
    }
    if width == 0 || labels.is_empty() {
        return Err(Error::invalid(format!(
            "width is {width} and labels has {} values; give at least one reference of at least one number",
            labels.len()
        )));
    }
    if labels.len().checked_mul(width) != Some(references.len()) {
        return Err(Error::invalid(format!(
            "references has {} numbers for {} labels and width {width}; give width numbers for each label",
            references.len(),
            labels.len()
        )));
    }
    let count = queries.len() / width;
    if !queries.len().is_multiple_of(width) {
        return Err(Error::invalid(format!(
            "queries has {} numbers for rows of width {width}; give width numbers for each row",
            queries.len()
        )));
    }
    all_finite("references", references)?;
    all_finite("labels", labels)?;
    all_finite("queries", queries)?;
    let rows_a_piece = (thread_pool::PIECE / (labels.len() * width)).max(1);
    let pieces = (0..count).step_by(rows_a_piece).map(|start| start..count.min(start + rows_a_piece)).collect();
    let made = thread_pool::map(pieces, |piece: std::ops::Range<usize>| {
        piece
            .map(|row| one(row, &queries[row * width..][..width], references, labels, scale))
            .collect::<Result<Vec<f64>>>()
    })?;
    Ok(made.concat())
}

fn one(row: usize, query: &[f64], references: &[f64], labels: &[f64], scale: f64) -> Result<f64> {
    let dot = |reference: &[f64]| query.iter().zip(reference).map(|(a, b)| a * b).sum::<f64>() / scale;
    let scores: Vec<f64> = references.chunks_exact(query.len()).map(dot).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut sum, mut total) = (0.0, 0.0);
    for (score, label) in scores.iter().zip(labels) {
        let weight = (score - most).exp();
        total += weight;
        sum += weight * label;
    }
    let mean = sum / total;
    if mean.is_finite() {
        return Ok(mean);
    }
    Err(Error::invalid(format!("the scores of queries[{row}] are too large; give shorter vectors, or a larger scale")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message<T>(result: Result<T>) -> String {
        result.map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    #[test]
    fn invalid_input_is_reported() {
        assert_eq!(message(attended(&[1.0], &[1.0], &[1.0], 1, 0.0)), "scale is 0; give a finite number above 0");
        assert_eq!(
            message(attended(&[1.0], &[], &[], 1, 1.0)),
            "width is 1 and labels has 0 values; give at least one reference of at least one number"
        );
        assert_eq!(
            message(attended(&[1.0; 3], &[1.0, 2.0], &[1.0], 2, 1.0)),
            "queries has 3 numbers for rows of width 2; give width numbers for each row"
        );
        assert_eq!(
            message(attended(&[f64::NAN], &[1.0], &[1.0], 1, 1.0)),
            "queries[0] is NaN, but must be finite; correct it or mark the row invalid"
        );
        assert_eq!(
            message(attended(&[1e200], &[1e200], &[1.0], 1, 1.0)),
            "the scores of queries[0] are too large; give shorter vectors, or a larger scale"
        );
    }

    proptest! {
        #[test]
        fn as_the_plain_formula(
            queries in prop::collection::vec(-3.0_f64..3.0, 0..12),
            references in prop::collection::vec((-3.0_f64..3.0, -3.0_f64..3.0, 0.0_f64..1.0), 1..6),
            scale in 0.3_f64..3.0,
        ) {
            let queries = &queries[..queries.len() / 2 * 2];
            let flat: Vec<f64> = references.iter().flat_map(|r| [r.0, r.1]).collect();
            let labels: Vec<f64> = references.iter().map(|r| r.2).collect();
            let found = attended(queries, &flat, &labels, 2, scale)?;
            for (query, found) in queries.chunks(2).zip(found) {
                let weights: Vec<f64> = references.iter().map(|r| ((query[0] * r.0 + query[1] * r.1) / scale).exp()).collect();
                let total: f64 = weights.iter().sum();
                let expected: f64 = weights.iter().zip(&labels).map(|(w, l)| w / total * l).sum();
                prop_assert!((found - expected).abs() < 1e-12);
            }
        }
    }
}
