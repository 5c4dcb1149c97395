"""Files of YAML that are hostile until checked: values that know their lines, and faults that name them."""
