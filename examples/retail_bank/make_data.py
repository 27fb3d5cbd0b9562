"""Draw the tables of the retail and bank example. The customers are SYNTHETIC: every number comes from a seed.

A bank and a chain of shops about the same 6,000 customers; 500 more are new.
"""

import numpy as np
import pandas as pd

CUSTOMERS, NEW = 6000, 500
draw = np.random.default_rng(11)
total = CUSTOMERS + NEW

income = draw.lognormal(7.9, 0.45, total).round(-1)
debt = draw.beta(2, 4, total).round(2)
years = draw.gamma(2.0, 3.0, total).round(1)
late = draw.poisson(0.5, total)
basket = draw.lognormal(3.6, 0.4, total).round(2)
visits = draw.poisson(6, total)
returns = draw.beta(1.2, 10, total).round(2)
pays = draw.choice(["card", "cash", "instalments"], total, p=[0.55, 0.3, 0.15])

# Steps and bends, as a scorecard has them: late twice is much worse than once, few and very many visits are both bad.
risk = np.select([late == 0, late == 1, late == 2], [-0.4, 0.3, 1.6], 2.0) + 2.5 * np.maximum(debt - 0.45, 0) / 0.2
risk += -0.8 * np.log(income / 2700) - 0.5 * np.minimum(years, 4) / 2
risk += (
    0.05 * (visits - 6.0) ** 2 / 2
    + 6.0 * returns
    + np.select([pays == "instalments", pays == "cash"], [0.9, -0.2], 0.0)
)
default = np.where(draw.random(total) < 1 / (1 + np.exp(-(risk - 1.9))), "yes", "no")

customer = np.arange(total) + 1
bank = pd.DataFrame(
    {"customer": customer, "income": income, "debt": debt, "years": years, "late": late, "default": default}
)
shop = pd.DataFrame({"customer": customer, "basket": basket, "visits": visits, "returns": returns, "pays": pays})
bank[:CUSTOMERS].to_csv("bank.csv", index=False)
shop[:CUSTOMERS].sample(frac=1, random_state=1).to_csv("shop.csv", index=False)
bank[CUSTOMERS:].drop(columns="default").to_csv("new_bank.csv", index=False)
shop[CUSTOMERS:].to_csv("new_shop.csv", index=False)
bank[CUSTOMERS:][["customer", "default"]].to_csv("new_truth.csv", index=False)
