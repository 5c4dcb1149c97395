{{/* What may be reached: names, broker and database. */}}
{{- define "rdukit.dns" }}
    - ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- end }}
{{- define "rdukit.stores" }}
    - to:
        - podSelector:
            matchLabels: {{- include "rdukit.selector" (dict "root" . "part" "broker") | nindent 14 }}
      ports: [{port: 6379, protocol: TCP}]
    - to:
        - podSelector:
            matchLabels: {{- include "rdukit.selector" (dict "root" . "part" "database") | nindent 14 }}
      ports: [{port: 5432, protocol: TCP}]
    {{- if or (not .Values.broker.bundled) (eq .Values.database.kind "external") }}
    - ports:
        {{- range .Values.networkPolicy.externalPorts }}
        - {port: {{ . }}, protocol: TCP}
        {{- end }}
    {{- end }}
{{- end }}
