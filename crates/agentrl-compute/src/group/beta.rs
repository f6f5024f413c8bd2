//! The Beta distribution that `BNPO` fits to the success rates of a batch's prompts.

/// Return `α` and `β` of the density that scales advantages, from the mean and the variance of success rates.
///
/// `a` and `b` are the moment estimates of the rates; `α = max(1, 1 + a/3)`, `β = max(1, 1 + b/3)`. Rates without
/// variance give the uniform density.
pub(super) fn fit(mean: f64, variance: f64) -> (f64, f64) {
    if variance <= 0.0 || variance.is_nan() {
        return (1.0, 1.0);
    }
    let size = mean * (1.0 - mean) / variance - 1.0;
    ((1.0 + size * mean / 3.0).max(1.0), (1.0 + size * (1.0 - mean) / 3.0).max(1.0))
}

/// Return the density at `p`: `p^(α-1) (1-p)^(β-1) Γ(α+β) / (Γ(α) Γ(β))`.
pub(super) fn density(p: f64, alpha: f64, beta: f64) -> f64 {
    let power = |base: f64, exponent: f64| if exponent == 0.0 { 1.0 } else { base.powf(exponent) };
    let log_size = log_gamma(alpha + beta) - log_gamma(alpha) - log_gamma(beta);
    power(p, alpha - 1.0) * power(1.0 - p, beta - 1.0) * log_size.exp()
}

/// Return `ln Γ(x)` for x of at least 1, by Stirling's series above 10 and the recurrence below; 14 digits or more.
fn log_gamma(mut x: f64) -> f64 {
    let mut product = 1.0;
    while x < 10.0 {
        product *= x;
        x += 1.0;
    }
    let inverse = 1.0 / (x * x);
    let series = [1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0, -1.0 / 1680.0, 1.0 / 1188.0, -691.0 / 360_360.0, 1.0 / 156.0];
    let tail = series.iter().rev().fold(0.0, |sum, term| sum * inverse + term) / x;
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + tail - product.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factorials_and_halves() {
        let mut factorial = 1.0_f64;
        for n in 1..30 {
            assert!((log_gamma(f64::from(n)) - factorial.ln()).abs() < 1e-13 * factorial.ln().max(1.0), "{n}");
            factorial *= f64::from(n);
        }
        let half = std::f64::consts::PI.sqrt() / 2.0;
        assert!((log_gamma(1.5) - half.ln()).abs() < 1e-14);
    }

    /// Sample variance of (.25, .5, .75): a = b = 1.5, so α = β = 1.5 and the density is 8/π · sqrt(p (1 - p)).
    #[test]
    fn the_fit_of_three_rates() {
        let (alpha, beta) = fit(0.5, 0.0625);
        assert!((alpha - 1.5).abs() < 1e-15 && (beta - 1.5).abs() < 1e-15);
        for p in [0.0, 0.25, 0.5, 1.0_f64] {
            let exact = 8.0 / std::f64::consts::PI * (p * (1.0 - p)).sqrt();
            assert!((density(p, alpha, beta) - exact).abs() < 1e-13, "{p}");
        }
        assert_eq!(fit(0.5, 0.0), (1.0, 1.0));
        assert_eq!(fit(0.5, f64::NAN), (1.0, 1.0));
        assert!((density(0.0, 1.0, 1.0) - 1.0).abs() < 1e-13);
    }
}
