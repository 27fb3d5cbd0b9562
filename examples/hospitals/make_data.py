"""Draw the tables of the hospitals' example. The patients are SYNTHETIC: every number comes from a seed.

A hospital with three sites and a laboratory with two, about the same 2,000 patients; 200 more are new.
"""

import numpy as np
import pandas as pd

PATIENTS, NEW = 2000, 200
draw = np.random.default_rng(7)
total = PATIENTS + NEW

age = draw.normal(62, 14, total).clip(18, 97).round()
ward = draw.choice(["surgery", "medicine", "cardiology"], total, p=[0.4, 0.4, 0.2])
stay = draw.gamma(2.0, 3.0, total).round(1)
visits = draw.poisson(1.2, total)
creatinine = draw.lognormal(0.0, 0.35, total).round(2)
crp = draw.lognormal(2.0, 1.0, total).round(1)
haemoglobin = draw.normal(13.2, 1.8, total).round(1)
glucose = draw.normal(6.0, 1.6, total).clip(2.5).round(1)

# Whoever is readmitted: age and earlier visits count, and so do kidneys, inflammation, and glucose far from normal.
risk = 0.035 * (age - 62) + 0.55 * visits + 0.06 * stay + 0.6 * (ward == "cardiology")
risk += 1.8 * np.log(creatinine) + 0.7 * np.log(crp / 7) - 0.35 * (haemoglobin - 13) + 0.35 * (glucose - 6) ** 2 / 2.5
readmitted = np.where(draw.random(total) < 1 / (1 + np.exp(-(risk - 2.2))), "yes", "no")

patient = np.arange(total) + 10_001
hospital = pd.DataFrame(
    {"patient": patient, "age": age, "ward": ward, "stay": stay, "visits": visits, "readmitted": readmitted}
)
lab = pd.DataFrame(
    {"patient": patient, "creatinine": creatinine, "crp": crp, "haemoglobin": haemoglobin, "glucose": glucose}
)
lab.loc[draw.random(total) < 0.08, "glucose"] = np.nan

site = draw.choice(["north", "south", "west"], PATIENTS, p=[0.5, 0.3, 0.2])
for name in ("north", "south", "west"):
    hospital[:PATIENTS][site == name].to_csv(f"hospital_{name}.csv", index=False)
branch = draw.choice(["city", "coast"], PATIENTS)
for name in ("city", "coast"):
    lab[:PATIENTS][branch == name].to_csv(f"lab_{name}.csv", index=False)
hospital[PATIENTS:].drop(columns="readmitted").to_csv("new_hospital.csv", index=False)
lab[PATIENTS:].to_csv("new_lab.csv", index=False)
hospital[PATIENTS:][["patient", "readmitted"]].to_csv("new_truth.csv", index=False)
