//! Statistics over several ranks: each computes its part, the caller reduces the parts, each finishes with the total.
//!
//! There are two reductions. The first reduces the extents (count by sum, least by minimum, most and heaviest by
//! maximum), which fix the grid. The second reduces the moments on it (integers, by sum). The result has the same bits
//! as on one rank with all rows.

use super::columns::Columns;
use super::extent::Extent;
use super::moments::Moments;
use crate::argument_checks::{room, same_length};
use crate::{Error, Float, Result};

/// Return the extent of this rank's votes in each of `count` groups.
///
/// Ids are the same on all ranks, so some groups may be empty here, and there may be more groups than rows.
///
/// ```
/// use agentrl_compute::group::{Columns, Statistics, extents, moments};
///
/// let parts = [(&[1.0, 2.0][..], &[0, 1][..]), (&[4.0], &[1])].map(|(v, g)| Columns::new("values", v, g));
/// let [a, b] = [extents(&parts[0], 2)?, extents(&parts[1], 2)?];
/// let whole: Vec<_> = a.into_iter().zip(b).map(|(a, b)| a.merge(b)).collect();
/// let [a, b] = [moments(&parts[0], &whole)?, moments(&parts[1], &whole)?];
/// let found = Statistics::finish(whole[1], a[1].merge(b[1]), 0);
/// assert_eq!((found.count, found.mean, found.std), (2, 3.0, 1.0));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, an id is not below `count`, a valid value is not finite or a weight is negative.
pub fn extents<T: Float>(columns: &Columns<'_, T>, count: usize) -> Result<Vec<Extent>> {
    room("groups", count, 4 * size_of::<Extent>())?;
    check(columns, count)?;
    columns.grouped(count, columns.groups.is_sorted())?.each(|group| {
        let votes = group.votes();
        Ok(Extent::of(votes.values, votes.weights))
    })
}

/// Return the moments of this rank's votes in each group, on the grids of the extents of all ranks.
///
/// # Errors
/// `InvalidInput` as in [`extents`], or if a value lies outside its group's extent.
pub fn moments<T: Float>(columns: &Columns<'_, T>, extents: &[Extent]) -> Result<Vec<Moments>> {
    check(columns, extents.len())?;
    for (row, &group) in columns.groups.iter().enumerate().filter(|&(row, _)| columns.votes(row)) {
        let (extent, value) = (extents[group as usize], columns.values[row].to_f64());
        let weight = columns.weights.map_or(1.0, |weights| weights[row]);
        if !(extent.least..=extent.most).contains(&value) || weight > extent.heaviest {
            return Err(Error::invalid(format!(
                "{}[{row}] is {value}, outside the extent of group {group}; merge the extents of all ranks first",
                columns.name
            )));
        }
    }
    let grouped = columns.grouped(extents.len(), columns.groups.is_sorted())?;
    grouped.each(|group| {
        let extent = extents[group.index()];
        let votes = group.votes();
        Ok(Moments::of(extent, votes.values, votes.weights))
    })
}

fn check<T: Float>(columns: &Columns<'_, T>, count: usize) -> Result<()> {
    same_length("groups", columns.groups.len(), columns.name, columns.values.len())?;
    match columns.groups.iter().position(|&group| group as usize >= count) {
        Some(row) => Err(Error::invalid(format!(
            "groups[{row}] is {}, but there are {count} groups; give ids below {count}",
            columns.groups[row]
        ))),
        None => columns.check_rows(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::testing::{Group, masked_groups};
    use crate::group::{Statistics, statistics};
    use proptest::prelude::*;

    #[test]
    fn invalid_input_is_reported() -> Result<()> {
        let columns = Columns::new("values", &[1.0, 2.0], &[0, 2]);
        let message = extents(&columns, 2).map_err(|error| error.to_string());
        assert_eq!(message, Err("groups[1] is 2, but there are 2 groups; give ids below 2".to_owned()));
        let mut whole = extents(&columns, 3)?;
        assert_eq!(whole[1], Extent::EMPTY);
        whole[0].most = 0.5;
        let message = moments(&columns, &whole).map_err(|error| error.to_string());
        assert_eq!(
            message,
            Err("values[0] is 1, outside the extent of group 0; merge the extents of all ranks first".to_owned())
        );
        Ok(())
    }

    proptest! {
        /// Two ranks that share groups get the same bits as one rank.
        #[test]
        fn as_one_rank((group, valid) in masked_groups(), cut in 0_usize..40, weighted in any::<bool>()) {
            let Group { values, groups, count } = group;
            let cut = cut.min(values.len());
            let weights: Vec<f64> = (0..values.len()).map(|row| (row % 4) as f64 * 0.3).collect();
            let part = |rows: std::ops::Range<usize>| Columns {
                valid: Some(&valid[rows.clone()]),
                weights: weighted.then_some(&weights[rows.clone()]),
                ..Columns::new("values", &values[rows.clone()], &groups[rows])
            };
            let parts = [part(0..cut), part(cut..values.len())];
            let [a, b] = [extents(&parts[0], count)?, extents(&parts[1], count)?];
            let whole: Vec<Extent> = a.into_iter().zip(b).map(|(a, b)| a.merge(b)).collect();
            let [a, b] = [moments(&parts[0], &whole)?, moments(&parts[1], &whole)?];
            let one = statistics(&part(0..values.len()), 1)?;
            for (group, one) in one.into_iter().enumerate() {
                let found = Statistics::finish(whole[group], a[group].merge(b[group]), 1);
                prop_assert_eq!(found.count, one.count);
                prop_assert_eq!((found.mean.to_bits(), found.std.to_bits()), (one.mean.to_bits(), one.std.to_bits()));
            }
        }
    }
}
